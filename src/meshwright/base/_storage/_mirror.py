"""A local directory whose files are uploaded to a store in the background."""

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwright.base._storage._path import ObjectPath
from meshwright.errors import MeshwrightError, UsageError

PUT_SECONDS = 30
"""Seconds between two uploads."""
RETRY_SECONDS = (1, 2, 4, 8, 15, 30, 60, 60)
"""Seconds to wait before each further try of the last upload: three minutes, as for other requests."""
_UNFINISHED = (".part", ".tmp")

Stamp = tuple[int, int]
"""The time of a file's last change, in nanoseconds, and its size in bytes."""


class Mirror:
    """A temporary directory and its copy in a store. `mirrored` opens it."""

    def __init__(self, address: str, warn: Callable[[str], None]):
        self._root, self._warn = ObjectPath.parse(address).impatient(), warn
        self._there: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._is_failing = False
        with _on_this_machine("a temporary directory"):
            self.path = Path(tempfile.mkdtemp(prefix="meshwright-run-"))
        """The directory to write to."""

    def get(self, names: Iterable[str]) -> None:
        """Download those of the named files that exist, and check that the store can be written to."""
        for name in names:
            with suppress(FileNotFoundError):
                self._keep(name, (self._root / name).read_bytes())
        self._there = self._here()
        probe = f".probe-{secrets.token_hex(4)}"
        self._keep(probe, b"written")
        self._put_changed()
        (self.path / probe).unlink()
        self._put_changed()

    def remove_probes(self) -> None:
        """Remove what tries of a store that could not delete have left. Call it when no process makes one."""
        for path in list(self._root.glob(".probe-*")):
            path.unlink()

    def _keep(self, name: str, content: bytes) -> None:
        with _on_this_machine(str(self.path)):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(content)

    def put(self) -> None:
        """Upload changed files. A failure is reported once, and the next call tries again."""
        failure = self._failure()
        if failure and not self._is_failing:
            self._warn(f"{failure}\n  It is tried again; until then the files are in {self.path}.")
        elif self._is_failing and not failure:
            self._warn(f"{self._root} can be written to again, and all files are there.")
        self._is_failing = failure is not None

    def close(self) -> str | None:
        """Upload changed files, trying several times, and delete the directory; or return why it is kept."""
        failure = self._failure()
        for seconds in RETRY_SECONDS:
            if failure is None:
                break
            time.sleep(seconds)
            failure = self._failure()
        if failure is None:
            shutil.rmtree(self.path)
            return None
        return f"{failure}\n  The files that are missing there are in {self.path}: copy them."

    def _failure(self) -> str | None:
        try:
            self._put_changed()
        except MeshwrightError as error:
            return str(error)
        return None

    def _put_changed(self) -> None:
        """Upload files in the order of their changes, so that the store holds a state that existed here."""
        with self._lock:
            here = self._here()
            for name in self._there.keys() - here.keys():
                (self._root / name).unlink()
                del self._there[name]
            for name in sorted(here, key=here.__getitem__):
                if self._there.get(name) != here[name]:
                    self._put_file(name)
                    self._there[name] = here[name]

    def _put_file(self, name: str) -> None:
        """Upload a file. If it was removed since it was listed, the next call removes it from the store."""
        try:
            (self._root / name).put(self.path / name)
        except MeshwrightError:
            if (self.path / name).exists():  # then the failure is the store's
                raise

    def _here(self) -> dict[str, Stamp]:
        found = {}
        for file in self.path.rglob("*"):
            with suppress(FileNotFoundError):  # removed just now
                if file.is_file() and file.suffix not in _UNFINISHED:
                    stat = file.stat()
                    found[file.relative_to(self.path).as_posix()] = (stat.st_mtime_ns, stat.st_size)
        return found


@contextmanager
def mirrored(address: str, names: Iterable[str], warn: Callable[[str], None]) -> Iterator[Mirror]:
    """Yield a temporary directory (`.path`) whose files are uploaded to a store in the background.

    A thread uploads changed files every 30 seconds, and `put` does so at once. Leaving the context waits
    until all files are uploaded, also after an error. A process that is killed loses the changes since the
    last upload.

    Args:
      address: The URL of a directory in a store.
      names: Relative names of files that are downloaded first, if they exist, so that they can be appended
        to.
      warn: Called with a message when the store cannot be written to, which is an error only at the end.

    Raises:
      UsageError: The store cannot be used; raised at the start.
      MeshwrightError: The store still cannot be written to at the end. The directory is then kept.

    Example:
      >>> with mw.data.mirrored("memory://bucket/run", [], warn=print) as mirror:
      ...     _ = (mirror.path / "metrics.jsonl").write_text("{}")
      >>> with mw.data.local_copy("memory://bucket/run") as directory:
      ...     (directory / "metrics.jsonl").read_text()
      '{}'
    """
    mirror = Mirror(address, warn)
    try:
        mirror.get(names)
    except MeshwrightError as error:
        shutil.rmtree(mirror.path)
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{error}\n  Correct the URL, the endpoint or the credentials, which must allow writing, reading "
            "and deleting."
        ) from error
    try:
        with _repeated(mirror.put):
            yield mirror
    except BaseException:
        if failure := mirror.close():
            warn(failure)
        raise
    if failure := mirror.close():
        raise MeshwrightError(failure)


@contextmanager
def _on_this_machine(place: str) -> Iterator[None]:
    """Turn an error of the local disk into one that says so."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the files of a run in a store are first written to the local disk, and {place} cannot be "
            f"written to: {error.strerror}.\n  Make room there, or set TMPDIR to a larger disk."
        ) from None


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every `PUT_SECONDS` on a thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(PUT_SECONDS):
            act()

    thread = threading.Thread(target=repeat, name="mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
