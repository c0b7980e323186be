"""A save in the background, and the directory of checkpoints that is open for it.

A save is two tasks on a thread, whose results all processes exchange at the end. A `Session` has the lock of
the directory, the thread, and the save in flight.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import jax
from jax.sharding import NamedSharding

from meshwright._version import __version__
from meshwright.base._internal import Directory, check_depth, write_whole
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import ArrayLayout
from meshwright.checkpoints._format._manifest import MANIFEST, Manifest, manifest_text, read_manifest
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._verify import incomplete, other_arrays
from meshwright.checkpoints._format._write import write_part
from meshwright.errors import MeshwrightError, UsageError, listed
from meshwright.processes import _internal as processes
from meshwright.processes._internal import on_all, on_lead

# All processes began at the same time and write about the same amount.
_OTHERS_SECONDS = 60
log = logging.getLogger("meshwright")


def begin_attempt(directory: Directory, step: int, extra: Mapping[str, Any] | None) -> str | None:
    """Create a temporary directory for a save and return its name; None if the step is saved already."""
    if step < 0:
        raise UsageError(f"cannot save step {step}: steps count from 0.")
    _check_json(extra)
    final = _directory.step_path(directory, step)
    if os.path.lexists(final) if isinstance(final, Path) else (final / MANIFEST).is_file():
        # A directory without a manifest, or with cut files, is in the way and is kept for inspection.
        if not (wrong := incomplete(final)):
            return None
        aside = _directory.set_aside(directory, step)
        log.error(f"{final} is not a complete checkpoint: {wrong}. It is kept as {aside}; saving again.")
    temporary = _directory.temporary_path(directory, step)
    temporary.mkdir()
    return str(temporary).removeprefix(f"{directory}/")


def check_is_saved(
    directory: Directory, head: Manifest, leaves: Mapping[str, Any], arrays: Sequence[ArrayLayout]
) -> None:
    """Check that a checkpoint that exists is of this state. Collective."""
    final = _directory.step_path(directory, head.step)
    parts = processes.gather(processes.on_all(lambda: sorted(other_arrays(final, leaves, arrays))))
    others = sorted({name for part in parts for name in part}) or processes.on_lead(
        lambda: _compared(final, head)
    )
    if others:
        raise UsageError(
            f"step {head.step} is saved already, with other values of {listed(others)}: {final} is of "
            "another training, or the state was changed since, and a checkpoint is never written again.\n"
            "  Begin from it by `Checkpoints.resume`; or give another directory, or move this one away."
        )


def add_scores(directory: Directory, step: int, scores: Mapping[str, float]) -> None:
    """Add scores to a checkpoint that exists: those of evaluations that were made after it was saved.

    Only its manifest is written again, which readers find either as it was or as it will be.
    """
    final = _directory.step_path(directory, step)
    saved = read_manifest(final)
    all_scores = {**saved.scores, **scores}
    if all_scores != saved.scores:
        content = manifest_text(replace(saved, extra={**saved.extra, "scores": all_scores}))
        if isinstance(final, Path):
            write_whole(final / MANIFEST, content)
        else:
            (final / MANIFEST).put(content)


def _compared(final: Directory, head: Manifest) -> list[str]:
    """Return the differences besides the arrays, and log the values of `extra` that stay as they were saved.

    The data's position and the scores of a restart may differ.
    """
    saved = read_manifest(final)
    saved_extra, new_extra = saved.extra, json.loads(json.dumps(head.extra))
    names = sorted((saved_extra.keys() | new_extra.keys()) - {"data", "scores"})
    text = lambda value: json.dumps(value, sort_keys=True)  # noqa: E731 - in which NaN is equal to NaN
    if changed := [name for name in names if text(saved_extra.get(name)) != text(new_extra.get(name))]:
        log.warning(f"{final} has the same state, and keeps its values of extra: {listed(changed)} differ.")
    return ["the kind of its random keys"] if saved.prng_keys != head.prng_keys else []


def _check_json(extra: Mapping[str, Any] | None) -> None:
    try:
        check_depth(json.loads(json.dumps(extra)))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot save `extra`, as JSON cannot hold it: {error}.") from None


@dataclass(frozen=True)
class Saving:
    """A save in progress."""

    step: int
    temporary: Directory
    writing: Future[None]
    """Done when this process's part is on disk."""
    committing: Future[None] | None
    """Done when the checkpoint is committed and old ones are removed; None on all processes but 0."""
    abandoned: Event
    """Set when the part of some process will not be written."""
    seconds: Callable[[], float]
    """Returns the time from its start until this process was done."""

    def finish(self) -> str | None:
        """Wait until all processes are done, and return the failures of any of them; None if there are none.

        Collective: call it on the main thread of all processes. The saving thread itself starts no
        collectives, because they would race with those of the training step.
        """
        # The saving thread starts no collectives, so the main threads exchange the results here.
        failures = [
            f"process {number}: {failure}"
            for number, failure in enumerate(processes.gather(_failure(self.writing)))
            if failure
        ]
        if failures:
            self.abandoned.set()
        not_committed = processes.agree(_failure(self.committing))
        if not failures and not not_committed:
            return None
        _directory.discard(self.temporary)
        return "\n  ".join(failures or [not_committed])

    def join(self) -> str | None:
        """Wait for this process only, and return its failure; None if there is none.

        The other processes may be gone. Process 0 still commits the checkpoint if they finish their parts in
        time.
        """
        if self.committing and not _failure(self.writing):
            futures.wait([self.committing], timeout=_OTHERS_SECONDS)
        self.abandoned.set()
        return _failure(self.writing) or _failure(self.committing)

    def error(self) -> BaseException | None:
        """Return the exception of this process, if any, for its traceback."""
        tasks = [task for task in (self.writing, self.committing) if task]
        return next((error for task in tasks if (error := task.exception())), None)


def start_saving(
    thread: Executor,
    leaves: Mapping[str, Any],
    arrays: Sequence[ArrayLayout],
    head: Manifest,
    temporary: Directory,
    host_nbytes: int,
    *,
    before_commit: Callable[[], None],
    after_commit: Callable[[], None],
) -> Saving:
    """Copy this process's shards to the host, and start writing them on `thread`.

    The leaves may be donated when this returns. At most `host_nbytes` of copies wait to be written; a larger
    state makes this wait. `before_commit` runs on process 0's thread before the commit, and `after_commit`
    after it.
    """
    began, ended = time.monotonic(), list[float]()
    num_processes, number = jax.process_count(), jax.process_index()
    chunks, abandoned = Snapshot(leaves, arrays, number, host_nbytes), Event()

    @processes.delaying_exit()
    def make_checkpoint() -> None:
        # Raises, if this process failed: then there is nothing to wait for.
        writing.result()
        before_commit()
        commit(temporary, _directory.final_path(temporary), head, arrays, num_processes, abandoned)
        processes.report_progress(head.step)
        after_commit()

    # A process that is to end finishes its part first.
    write = processes.delaying_exit()(write_part)
    try:
        chunks.take(wait=False)
        writing = thread.submit(write, temporary, arrays, chunks, number, num_processes)
        committing = thread.submit(make_checkpoint) if processes.is_lead() else None
        (committing or writing).add_done_callback(lambda _: ended.append(time.monotonic()))
        chunks.take(wait=True)
    except BaseException:
        # Otherwise the thread would wait for chunks for ever.
        chunks.abandon()
        abandoned.set()
        raise
    return Saving(
        head.step, temporary, writing, committing, abandoned, lambda: (ended or [time.monotonic()])[0] - began
    )


def _failure(task: Future[None] | None) -> str | None:
    """Wait for a task and return its error as a text; None if it succeeded."""
    error = task.exception() if task else None
    if error is None or isinstance(error, MeshwrightError):
        return str(error) if error else None
    return f"{type(error).__name__}: {error}"


def writer_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest's entry `writer`: versions, number of processes and mesh."""
    shardings = [getattr(leaf, "sharding", None) for leaf in leaves.values()]
    meshes = (dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding))
    return {
        "meshwright": __version__,
        "jax": jax.__version__,
        "processes": jax.process_count(),
        "mesh": next(meshes, None),
    }


class Session:
    """A directory opened for saving by one run. Methods are collective, but for `leave` after an error."""

    def __init__(self, directory: Directory, outdated: Sequence[str] = ()):
        """Open nothing yet; `open` does."""
        self._directory, self._outdated = directory, outdated
        self._lock: ExitStack | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.saving: Saving | None = None
        """The save in progress, if any."""

    @property
    def is_open(self) -> bool:
        """Return whether the directory is open for saving."""
        return self._thread is not None

    @property
    def thread(self) -> Executor:
        """Return the thread that writes files."""
        if self._thread is None:
            raise UsageError("open the directory first: `with Checkpoints(...) as checkpoints:`.")
        return self._thread

    def open(self) -> None:
        """Create the directory if needed, lock it, and remove incomplete saves of killed runs."""
        try:
            on_lead(self._take)
            on_all(lambda: _directory.probe(self._directory))
            on_lead(lambda: _directory.remove_temporaries(self._directory, self._outdated))
            self._thread = ThreadPoolExecutor(1, "checkpoint")
        except BaseException:
            self._close()
            raise

    def wait(self) -> float:
        """Wait until the save in flight, if any, is complete, and return the seconds that it took."""
        if (saving := self.saving) is None:
            return 0.0
        # If this is interrupted, the save is still in flight.
        failure = saving.finish()
        self.saving = None
        if failure:
            raise MeshwrightError(f"the save of step {saving.step} failed:\n  {failure}") from saving.error()
        return saving.seconds()

    def leave(self, error: BaseException | None, last: Callable[[], None]) -> None:
        """Wait for the save in flight, and call `last`; after an error, only wait for this process's part."""
        try:
            if error is None:
                self.wait()
                last()
        except BaseException as failed:
            # Another process may be gone.
            self._join(failed)
            raise
        else:
            self._join(error)
        finally:
            self._close()

    def _join(self, error: BaseException | None) -> None:
        if error and self.saving and (failure := self.saving.join()):
            error.add_note(f"The save of step {self.saving.step} failed, too: {failure}")

    def _take(self) -> None:
        self._lock = _directory.lock(self._directory)

    def _close(self) -> None:
        try:
            if self._thread:
                self._thread.shutdown()
        finally:
            # The lock is released even if waiting is interrupted: a thread that still writes has a directory
            # of its own.
            if self._lock:
                self._lock.close()
            self._thread = self._lock = self.saving = None
