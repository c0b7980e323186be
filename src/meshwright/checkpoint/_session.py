"""A directory of checkpoints, while it is open for saving: its lock, a thread, and the save in flight."""

from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack

from meshwright.checkpoint import _directory
from meshwright.checkpoint._saving import Saving
from meshwright.errors import MeshwrightError, UsageError
from meshwright.process import on_lead, together
from meshwright.storage import Directory


class Session:
    """One run's turn at saving in a directory. All but `leave` after an error is collective."""

    def __init__(self, directory: Directory):
        """Take a directory; `open` opens it."""
        self._directory = directory
        self._lock: ExitStack | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.saving: Saving | None = None
        """The save in flight."""

    @property
    def is_open(self) -> bool:
        """Whether it may be saved to."""
        return self._thread is not None

    @property
    def thread(self) -> Executor:
        """Return the thread that writes.

        Raises:
          UsageError: The directory is not open.
        """
        if self._thread is None:
            raise UsageError("open the directory first: `with Checkpoints(...) as checkpoints:`.")
        return self._thread

    def open(self) -> None:
        """Make the directory, where it is not, hold it, and remove what killed runs left in it.

        Raises:
          UsageError: Another run has it open, or it cannot be used by some process.
        """
        try:
            on_lead(self._take)
            together(lambda: _directory.probe(self._directory))
            on_lead(lambda: _directory.remove_temporaries(self._directory))
            self._thread = ThreadPoolExecutor(1, "checkpoint")
        except BaseException:
            self._close()
            raise

    def wait(self) -> None:
        """Return when the save in flight, if any, is complete.

        Raises:
          MeshwrightError: It failed on some process.
        """
        if saving := self.saving:
            failure = saving.finish()  # if that is interrupted, the save is still in flight
            self.saving = None
            if failure:
                raise MeshwrightError(
                    f"the save of step {saving.step} failed:\n  {failure}"
                ) from saving.error()

    def leave(self, error: BaseException | None) -> None:
        """Wait for the save in flight; after an error, which others may not share, for this process only."""
        try:
            if error is None:
                self.wait()
            elif self.saving and (failure := self.saving.join()):
                error.add_note(f"The save of step {self.saving.step} failed, too: {failure}")
        finally:
            self._close()

    def _take(self) -> None:
        self._lock = _directory.lock(self._directory)

    def _close(self) -> None:
        try:
            if self._thread:
                self._thread.shutdown()
        finally:  # for who gives that up: what then still writes into a directory of its own harms nobody
            if self._lock:
                self._lock.close()
            self._thread = self._lock = self.saving = None
