"""One save, behind the loop: two tasks on a thread, and how their end is told to all processes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Event
from typing import Any

import jax

from meshwright import process
from meshwright.checkpoint._directory import discard, final_path
from meshwright.checkpoint._format import ArrayLayout, Manifest, Snapshot, commit, upload_part, write_part
from meshwright.checkpoint._object_path import Directory, ObjectPath
from meshwright.errors import MeshwrightError


@dataclass(frozen=True)
class Saving:
    """A save in flight."""

    step: int
    temporary: Directory
    written: Future[None]
    """This process's part is on disk."""
    committed: Future[None] | None
    """The checkpoint is there, and old ones are gone; on process 0 only."""
    abandoned: Event
    """Set when some part will not come."""

    def finish(self) -> None:
        """Wait until all processes are done.

        Collective: call it on the main thread of all processes. The thread itself starts no
        collectives, as they would race with those of the training step.

        Raises:
          MeshwrightError: On every process, when any of them failed.
        """
        failures = [
            f"process {number}: {failure}"
            for number, failure in enumerate(process.gather(_failure(self.written)))
            if failure
        ]
        if failures:
            self.abandoned.set()
        not_committed = process.agree(_failure(self.committed))
        if failures or not_committed:
            discard(self.temporary)
            raise MeshwrightError(
                f"the save of step {self.step} failed:\n  " + "\n  ".join(failures or [not_committed])
            ) from self._error()

    def join(self) -> str | None:
        """Wait for this process alone, and return what went wrong, if anything."""
        if _failure(self.written):
            self.abandoned.set()
        return _failure(self.written) or _failure(self.committed)

    def _error(self) -> BaseException | None:
        """Return the failure that happened here, for its traceback."""
        tasks = [task for task in (self.written, self.committed) if task]
        return next((error for task in tasks if (error := task.exception())), None)


def start_saving(
    thread: Executor,
    leaves: Mapping[str, Any],
    arrays: Sequence[ArrayLayout],
    head: Manifest,
    temporary: Directory,
    host_nbytes: int,
    then: Callable[[], None],
) -> Saving:
    """Copy this process's shards to the host and let `thread` do the rest; the leaves may then be donated.

    What is copied and not yet written is at most `host_nbytes`; a larger state is written meanwhile.
    `then` is called on process 0's thread after the commit.
    """
    num_processes, number = jax.process_count(), jax.process_index()
    chunks = Snapshot(leaves, arrays, number, host_nbytes)
    complete = chunks.take(wait=False)
    abandoned = Event()

    def make_checkpoint() -> None:
        commit(temporary, final_path(temporary), head, arrays, num_processes, abandoned)
        then()

    if isinstance(temporary, ObjectPath):
        written = thread.submit(upload_part, temporary, arrays, chunks, number, num_processes)
    else:
        written = thread.submit(write_part, temporary, arrays, chunks, number, num_processes)
    committed = thread.submit(make_checkpoint) if process.is_lead() else None
    if not complete:
        _take_rest(chunks)
    return Saving(head.step, temporary, written, committed, abandoned)


def _take_rest(chunks: Snapshot) -> None:
    try:
        chunks.take(wait=True)
    except BaseException:
        chunks.abandon()  # or the thread would wait for what will not come
        raise


def _failure(task: Future[None] | None) -> str | None:
    """Wait for a task and return what went wrong, or None."""
    error = task.exception() if task else None
    if error is None or isinstance(error, MeshwrightError):
        return str(error) if error else None
    return f"{type(error).__name__}: {error}"
