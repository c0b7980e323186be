"""A directory of checkpoints, while it is open for saving: its lock, a thread, and the save in flight."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack

from meshwright.base._internal import Directory
from meshwright.checkpoints import _directory
from meshwright.checkpoints._saving import Saving
from meshwright.errors import MeshwrightError, UsageError
from meshwright.processes._internal import on_all, on_lead


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
        failure = saving.finish()  # if this is interrupted, the save is still in flight
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
        except BaseException as failed:  # another process may be gone
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
        finally:  # also if waiting is interrupted: a thread that still writes uses a directory of its own
            if self._lock:
                self._lock.close()
            self._thread = self._lock = self.saving = None
