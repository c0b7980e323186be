"""The checkpoints of a run in memory, open for saving, and the save in progress.

Each process writes its part on a thread, and the first process of each host commits.
Nothing is exchanged: the directory of the save is named by the start of the run and the step. The first
process of a host makes it, once enough memory is free, which is the sign for the others. When all parts of
the host are there, it renames the directory. Whether all hosts have done so is asked later, by
`complete_steps`.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import jax

from meshwright.base._internal import Directory, human_bytes
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import ArrayLayout
from meshwright.checkpoints._format._manifest import Manifest
from meshwright.checkpoints._format._read import NativeSource
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part
from meshwright.checkpoints._host_memory._budget import (
    InMemory,
    check_room,
    free_nbytes,
    layouts_here,
    nbytes_here,
    sizes,
    steps_to_remove,
)
from meshwright.checkpoints._host_memory._host_directory import (
    ATTEMPT,
    HostDirectory,
    complete_steps,
    open_host_directory,
    remove,
    remove_steps,
    renew,
)
from meshwright.errors import MeshwrightError, UsageError
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Writing:
    """A save to memory in progress."""

    step: int
    temporary: Path
    task: Future[None]
    """Done when this process has written its part; on the first process of a host, when it is committed."""
    abandoned: Event
    """Set to give up."""

    def state(self) -> str | None:
        """Return "" when this process is done, a text if it failed, and None while it still writes."""
        if not self.task.done():
            return None
        error = self.task.exception()
        if error is None:
            return ""
        if isinstance(error, OSError):
            return error.strerror
        return str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"

    def finish(self, seconds: float) -> None:
        """Wait until this process is done, so many seconds at most: it may wait for one that is gone."""
        deadline = time.monotonic() + seconds
        while not self.task.done() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.abandoned.set()


def start_writing(
    thread: Executor,
    directory: HostDirectory,
    head: Manifest,
    leaves: Mapping[str, Any],
    arrays: tuple[ArrayLayout, ...],
    host_nbytes: int,
    *,
    remove: Sequence[int],
    before_commit: Callable[[], None],
) -> Writing:
    """Copy this process's shards to the host, and start writing them on `thread`.

    The leaves may be donated when this returns. At most `host_nbytes` of copies wait to be written.
    """
    number, num_processes = jax.process_index(), jax.process_count()
    temporary = directory.path / f"{_directory.step_name(head.step)}.tmp-{directory.attempt}"
    chunks, abandoned = Snapshot(leaves, arrays, number, host_nbytes), Event()

    @processes.delaying_exit()
    def write() -> None:
        try:
            if directory.is_lead:
                remove_steps(directory, remove)
                temporary.mkdir()
            else:
                _await_directory(temporary, abandoned)
            write_part(temporary, arrays, chunks, number, num_processes)
        except BaseException:
            chunks.abandon()
            raise
        if number == 0:
            before_commit()
        if directory.is_lead:
            final = _directory.final_path(temporary)
            commit(temporary, final, head, arrays, num_processes, abandoned, directory.processes)
            if directory.is_only:
                processes.report_progress(head.step)

    try:
        chunks.take(wait=False)
        task = thread.submit(write)
        chunks.take(wait=True)
    except BaseException:
        chunks.abandon()
        abandoned.set()
        raise
    return Writing(head.step, temporary, task, abandoned)


def _await_directory(path: Path, abandoned: Event) -> None:
    while not path.is_dir():
        if abandoned.wait(_POLL_SECONDS):
            raise MeshwrightError(f"the first process of this host did not make {path}.")


log = logging.getLogger("meshwright")

_END_SECONDS, _END_SECONDS_AFTER_ERROR = 60, 5
"""The seconds that a run waits for its last save at its end, and after an error: others may be gone."""


class HostMemoryCheckpoints:
    """The checkpoints of a run in memory. Methods are collective, but for `close` after an error."""

    def __init__(self, settings: InMemory, checkpoints: Directory):
        """Open nothing yet; `open` does."""
        self._settings, self._checkpoints = settings, checkpoints
        self._stack = ExitStack()
        self._host_directory: HostDirectory | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Writing | None = None
        self._complete: int | None = None
        self._skip_reasons: set[str] = set()
        self.on_skip: Callable[[str], None] = log.warning
        """Gets a message, on process 0, when a checkpoint is skipped, once for each reason."""

    @property
    def directory(self) -> HostDirectory:
        """Return the directory in memory."""
        if self._host_directory is None:
            raise UsageError(
                "checkpoints in memory are found only while the directory is open: `with Checkpoints(…, "
                "memory=…) as checkpoints:`."
            )
        return self._host_directory

    def open(self) -> None:
        """Make the directory in memory, and find out which processes share it."""
        self._host_directory = open_host_directory(self._settings.directory, self._checkpoints, self._stack)
        self._thread = ThreadPoolExecutor(1, "checkpoint-in-memory")

    def check(self, leaves: Mapping[str, Any]) -> None:
        """Check that two checkpoints of a state fit, given by name as it is saved, as arrays or structs."""
        nbytes = nbytes_here(layouts_here(leaves, self.directory), self.directory)
        processes.on_all(lambda: check_room(nbytes, self._settings, self.directory))

    def has_any(self) -> bool:
        """Return whether this host has its part of any checkpoint. Not collective."""
        return bool(_directory.complete_steps(self.directory.path))

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """Return the steps that all hosts have, in ascending order, and the problems of others, by step."""
        return complete_steps(self.directory)

    def source(self, step: int) -> NativeSource:
        """Return this host's part of a checkpoint."""
        return NativeSource(_directory.step_path(self.directory.path, step))

    def begin(self, resumed: int | None) -> None:
        """Remove the checkpoints except `resumed`, from which the run continued; None removes all."""
        self._complete = resumed

        def remove_others() -> None:
            steps = _directory.complete_steps(self.directory.path)
            remove_steps(self.directory, [step for step in steps if step != resumed])

        processes.on_all(lambda: remove_others() if self.directory.is_lead else None)
        if resumed is not None:
            processes.report_progress(resumed)

    def is_due(self, tick: Tick) -> bool:
        """Return whether to save now. Not at the end, when the state is saved on disk."""
        step = tick.step
        return step > 0 and not tick.last and step % self._settings.every == 0 and self._is_free(step)

    def _is_free(self, step: int) -> bool:
        """Return whether the save of a step can begin: none of any process is in flight."""
        if self._writing is None:
            return True
        states = processes.gather(self._writing.state())
        failures = [f"process {number}: {state}" for number, state in enumerate(states) if state]
        if failures:
            self._writing.abandoned.set()
            free = f"{human_bytes(free_nbytes(self.directory.path))} are free in {self._settings.directory}"
            self._skip(self._writing.step, f"{'; '.join(failures)}; {free}", failures[0])
        if None in states:
            if not failures:
                slow = "the one before is still being written; give a larger InMemory.every"
                self._skip(step, slow, slow)
            return False
        if failures and self.directory.is_lead:
            _directory.discard(self._writing.temporary)
        elif not failures:
            self._complete = self._writing.step
            processes.report_progress(self._complete)
        self._writing = None
        return True

    def save(
        self,
        leaves: Mapping[str, Any],
        head: Manifest,
        host_nbytes: int,
        before_commit: Callable[[], None],
    ) -> None:
        """Start saving a state, after `is_due` has returned True."""
        directory = self.directory
        assert self._thread is not None
        arrays = layouts_here(leaves, directory)
        nbytes = nbytes_here(arrays, directory)
        steps = sizes(directory.path, _directory.complete_steps(directory.path)) if directory.is_lead else {}
        self._writing = start_writing(
            self._thread,
            directory,
            replace(head, writer={**head.writer, ATTEMPT: directory.attempt}),
            leaves,
            arrays,
            host_nbytes,
            remove=steps_to_remove(steps, self._complete, nbytes, self._settings.budget_nbytes),
            before_commit=before_commit,
        )

    def wait(self) -> None:
        """Wait until no save is in flight on any process. Collective."""
        # All processes call this, so none of them is waited for in vain.
        while self._writing is not None:
            self._writing.finish(_END_SECONDS)
            self._is_free(self._writing.step)

    def invalidate(self, last_step: int | None = None) -> None:
        """Remove checkpoints in memory, and make those of hosts that are not in the run now invalid."""
        self._complete = last_step
        renew(self.directory, self._checkpoints, last_step)

    def close(self, error: BaseException | None) -> None:
        """Wait for the save in flight, and remove the directory if the disk has a checkpoint as new."""
        try:
            if self._writing:
                self._writing.finish(_END_SECONDS if error is None else _END_SECONDS_AFTER_ERROR)
            if self._thread:
                self._thread.shutdown(wait=error is None)
            if self._host_directory:
                self._remove_if_saved(self._host_directory)
        finally:
            self._stack.close()
            self._host_directory = self._thread = self._writing = None

    def _remove_if_saved(self, directory: HostDirectory) -> None:
        """Remove the directory, on the first process of the host, if no restart would use it."""
        if not directory.is_lead or (self._writing and not self._writing.task.done()):
            return
        try:
            on_disk = max(_directory.complete_steps(self._checkpoints), default=-1)
        except MeshwrightError as failure:
            # The store does not answer.
            log.warning("%s stays, as it is not known what is saved elsewhere: %s", directory.path, failure)
            return
        # If the disk has a step as new, a restart reads that, and memory can be freed.
        if on_disk >= max(_directory.complete_steps(directory.path), default=-1):
            remove(directory)

    def _skip(self, step: int, why: str, reason: str) -> None:
        """Report that a step is not kept in memory, once for each reason."""
        if processes.is_lead() and reason not in self._skip_reasons:
            self.on_skip(f"step {step} is not kept in memory: {why}. The run goes on, and saves as before.")
        self._skip_reasons.add(reason)
