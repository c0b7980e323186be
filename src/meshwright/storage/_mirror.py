"""A directory of this machine whose files are put at an address, behind whoever writes them."""

import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwright.errors import MeshwrightError, UsageError
from meshwright.storage._path import ObjectPath

PUT_SECONDS = 30
"""How old may be what is at the address."""
RETRY_SECONDS = (1, 2, 4, 8)
"""At the end, how long to wait before each further try."""
_UNFINISHED = (".part", ".tmp")

Stamp = tuple[int, int]
"""When a file was changed, in nanoseconds, and its size."""


class Mirror:
    """A temporary directory, and what of it is at an address. `mirrored` opens it."""

    def __init__(self, address: str, warn: Callable[[str], None]):
        self._root, self._warn = ObjectPath.parse(address).impatient(), warn
        self._there: dict[str, Stamp] = {}
        self._lock = threading.Lock()
        self._is_failing = False
        with _on_this_machine("a temporary directory"):
            self.path = Path(tempfile.mkdtemp(prefix="meshwright-run-"))
        """Where to write."""

    def get(self, names: Iterable[str]) -> None:
        """Fetch those of these files that are at the address, and show that it can be written to.

        Raises:
          MeshwrightError: something of this cannot be done.
          UsageError: it is this machine that has no place for them.
        """
        for name in names:
            with suppress(FileNotFoundError):
                self._keep(name, (self._root / name).read_bytes())
        self._there = self._here()
        probe = f".probe-{secrets.token_hex(4)}"
        self._keep(probe, b"written")
        self._put_changed()
        (self.path / probe).unlink()
        self._put_changed()

    def _keep(self, name: str, content: bytes) -> None:
        with _on_this_machine(str(self.path)):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_bytes(content)

    def put(self) -> None:
        """Put what has changed. Where that fails it warns, once, and the next call tries again."""
        failure = self._failure()
        if failure and not self._is_failing:
            self._warn(f"{failure}\n  It is tried again; until then the files are in {self.path}.")
        elif self._is_failing and not failure:
            self._warn(f"{self._root} can be written to again, and all is there.")
        self._is_failing = failure is not None

    def close(self) -> str | None:
        """Put what has changed, with some patience, and delete the directory; or say why it is kept."""
        failure = self._failure()
        for seconds in RETRY_SECONDS:
            if failure is None:
                break
            time.sleep(seconds)
            failure = self._failure()
        if failure is None:
            shutil.rmtree(self.path)
            return None
        return f"{failure}\n  What is not there is in {self.path}: copy it from there."

    def _failure(self) -> str | None:
        try:
            self._put_changed()
        except MeshwrightError as error:
            return str(error)
        return None

    def _put_changed(self) -> None:
        """Put files in the order in which they were changed, so that what is there was once here."""
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
        """Put a file. One that was removed since it was seen is left to the next call, to remove it there."""
        try:
            (self._root / name).put(self.path / name)
        except MeshwrightError:
            if (self.path / name).exists():  # it is the store that lacks something
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
    """Open a temporary directory whose files are put at an address, and no writer waits for that.

    A thread looks every half a minute what has changed; `put` does so at once; and leaving waits until all is
    there, after an error, too. A process that is killed loses what was changed since.

    Args:
      names: files that are fetched first, if they are there, so that they can be continued.
      warn: is told when the address cannot be written to for a while, which is no error before the end.

    Raises:
      UsageError: at once, if the address cannot be used.
      MeshwrightError: at the end, if it still cannot be written to. The directory is kept.
    """
    mirror = Mirror(address, warn)
    try:
        mirror.get(names)
    except MeshwrightError as error:
        shutil.rmtree(mirror.path)
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"{error}\n  Mend the address, the endpoint or the credentials, which must allow to write, read "
            "and delete."
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
    """Say that it is this machine that cannot keep the files.

    Raises:
      UsageError: it cannot.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"a run at an address is written on this machine first, and {place} cannot be written to: "
            f"{error.strerror}.\n  Make room there, or set TMPDIR to a directory with more."
        ) from None


@contextmanager
def _repeated(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` now and then on a thread."""
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
