"""One save to memory: each process writes its part on a thread, and the first of each host commits.

Nothing is exchanged: the directory of the save is named by the start of the run and the step. The first
process of a host makes it, once there is room, which is the sign for the others. When all parts of the host
are there, it renames the directory. Whether all hosts have done so is asked later, by `_complete_steps`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import jax

from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._format._layout import ArrayLayout
from meshwright.checkpoints._format._manifest import Manifest
from meshwright.checkpoints._format._snapshot import Snapshot
from meshwright.checkpoints._format._write import write_part
from meshwright.checkpoints._host_memory._host_directory import Place, remove_steps
from meshwright.errors import MeshwrightError
from meshwright.processes import _internal as processes

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Writing:
    """A save to memory in progress."""

    step: int
    temporary: Path
    done: Future[None]
    """Done when this process has written its part; on the first process of a host, when it is committed."""
    abandoned: Event
    """Set to give up."""

    def state(self) -> str | None:
        """Return "" when this process is done, a text if it failed, and None while it still writes."""
        if not self.done.done():
            return None
        error = self.done.exception()
        if error is None:
            return ""
        if isinstance(error, OSError):
            return error.strerror
        return str(error) if isinstance(error, MeshwrightError) else f"{type(error).__name__}: {error}"

    def finish(self, seconds: float) -> None:
        """Wait until this process is done, so many seconds at most: it may wait for one that is gone."""
        deadline = time.monotonic() + seconds
        while not self.done.done() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.abandoned.set()


def start_writing(
    thread: Executor,
    place: Place,
    head: Manifest,
    leaves: Mapping[str, Any],
    arrays: tuple[ArrayLayout, ...],
    host_nbytes: int,
    *,
    remove: Sequence[int],
    first: Callable[[], None],
) -> Writing:
    """Copy this process's shards to the host, and start writing them on `thread`.

    The leaves may be donated when this returns. At most `host_nbytes` of copies wait to be written.
    """
    number, num_processes = jax.process_index(), jax.process_count()
    temporary = place.path / f"{_directory.step_name(head.step)}.tmp-{place.attempt}"
    chunks, abandoned = Snapshot(leaves, arrays, number, host_nbytes), Event()

    @processes.delaying_exit()
    def write() -> None:
        try:
            if place.is_lead:
                remove_steps(place, remove)
                temporary.mkdir()
            else:
                _await_directory(temporary, abandoned)
            write_part(temporary, arrays, chunks, number, num_processes)
        except BaseException:
            chunks.abandon()
            raise
        if number == 0:
            first()
        if place.is_lead:
            final = _directory.final_path(temporary)
            commit(temporary, final, head, arrays, num_processes, abandoned, place.processes)
            if place.is_only:
                processes.report_progress(head.step)

    try:
        chunks.take(wait=False)
        done = thread.submit(write)
        chunks.take(wait=True)
    except BaseException:
        chunks.abandon()
        abandoned.set()
        raise
    return Writing(head.step, temporary, done, abandoned)


def _await_directory(path: Path, abandoned: Event) -> None:
    while not path.is_dir():
        if abandoned.wait(_POLL_SECONDS):
            raise MeshwrightError(f"the first process of this host did not make {path}.")
