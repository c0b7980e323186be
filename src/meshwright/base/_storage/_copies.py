"""Copies of files between a store and this machine: at once, or in the background while a run writes."""

import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from meshwright.base._files import read_file
from meshwright.base._storage._local_paths import local_path
from meshwright.base._storage._path import ObjectPath, location
from meshwright.base._storage._store import Entry
from meshwright.errors import InputError, MeshwrightError, UsageError, printable

log = logging.getLogger("meshwright")

CHECKPOINTS = "checkpoints"
"""The folder of a run that is never copied: it is large, and checkpoints are read from the store itself."""
_OF_A_RUN = {"experiment.txt", "metrics.jsonl"}
"""Files that only a run's directory has."""
_LONGEST_NAME = 255
"""Bytes, on the file systems of Linux and macOS."""
_BLOCK_BYTES = 1 << 26


@contextmanager
def local_copy(source: str | Path, select: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Yield a local directory with the files at `source`: a local directory itself, or a temporary copy.

    Checkpoints of runs are never copied. Keys that are no relative paths, such as `logs/../../x` or
    `logs//x`, are skipped with a warning, because anyone who may write to the store can choose them. Copies
    keep the times of their originals. If nothing is at `source`, the directory is empty.

    Args:
      source: A local directory, or the URL of a directory or of one file in a store. The copy of a file is a
        directory that holds the file.
      select: Returns whether to copy a file, given its relative name, `logs/process-00000.log`.

    Raises:
      UsageError: The URL cannot be opened.
      MeshwrightError: The store cannot be read.

    Example:
      >>> with mw.base._internal.put_file_at("memory://runs/a/note.txt") as path:
      ...     _ = path.write_text("hello")
      >>> with mw.data.local_copy("memory://runs/a") as directory:
      ...     [path.name for path in directory.iterdir()]
      ['note.txt']
    """
    if not isinstance(root := location(source), ObjectPath):
        yield local_path(source)
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-copy-") as temporary:
        for name, path, entry in _files(root):
            if select(name):
                _get_below(Path(temporary), name, path, entry)
        yield Path(temporary)


@contextmanager
def put_at(target: str | Path) -> Iterator[Path]:
    """Yield a directory to write files to: a local directory itself, or a temporary one, uploaded at the end.

    After an error nothing is uploaded. The temporary directory is deleted in any case.
    """
    if not isinstance(root := location(target), ObjectPath):
        yield local_path(target)
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-put-") as temporary:
        yield Path(temporary)
        for file in sorted(Path(temporary).rglob("*")):
            if file.is_file():
                (root / file.relative_to(temporary).as_posix()).put(file)


@contextmanager
def put_file_at(target: str | Path) -> Iterator[Path]:
    """Yield a path to write one file to: a local path itself, or a temporary one, uploaded at the end."""
    if not isinstance(path := location(target), ObjectPath):
        yield local_path(target)
        return
    if not path.key:
        raise UsageError(f"{target} names only a bucket: expected {target}/path.")
    with put_at(str(path.parent)) as directory:
        yield directory / path.name


def read_text(source: str | Path) -> str:
    """Return the text of a small file."""
    path = location(source)
    try:
        return (path.read_bytes() if isinstance(path, ObjectPath) else read_file(local_path(source))).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is damaged: it is not UTF-8 text ({error}). Copy it again.") from None


def _files(root: ObjectPath) -> Iterator[tuple[str, ObjectPath, Entry]]:
    """Yield the relative name, the path and the entry of each file below `root`, or of `root` itself."""
    if entry := root.look():
        yield root.name, root, entry
    yield from _files_below(root, root)


def _files_below(folder: ObjectPath, root: ObjectPath) -> Iterator[tuple[str, ObjectPath, Entry]]:
    entries, folders = folder.children()
    start = len(root.key) + bool(root.key)
    for entry in entries:
        yield entry.key[start:], root / entry.key[start:], entry
    is_run = folder is root or _OF_A_RUN.intersection(entry.key.rpartition("/")[2] for entry in entries)
    for key in folders:
        if not (is_run and key.rpartition("/")[2] == CHECKPOINTS):
            yield from _files_below(root / key[start:], root)


def _get_below(directory: Path, name: str, path: ObjectPath, entry: Entry) -> None:
    """Copy a file to this name below a directory; if that cannot be a file's name, log a warning instead."""
    wrong = _why_no_name(name)
    try:
        if wrong is None:
            _get(path, entry, directory / name)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        wrong = "its name is also that of a folder"
    if wrong is not None:
        log.warning("%s is left out: %s", printable(str(path), keep=""), wrong)


def _why_no_name(name: str) -> str | None:
    """Return why a key cannot be the relative name of a local file; None if it can."""
    if "\\" in name or "\0" in name:
        return "its key is no relative path of a file"
    if any(len(part.encode(errors="surrogatepass")) > _LONGEST_NAME for part in name.split("/")):
        return f"a name is longer than {_LONGEST_NAME} bytes"
    return None


def _get(path: ObjectPath, entry: Entry, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        for first in range(0, entry.nbytes, _BLOCK_BYTES):
            file.write(path.answer(path.request(first, first + _BLOCK_BYTES)))
    if entry.modified is not None:
        os.utime(target, (entry.modified, entry.modified))


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
        self._uploaded: dict[str, Stamp] = {}
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
        self._uploaded = self._stamps()
        probe = f".probe-{secrets.token_hex(4)}"
        self._keep(probe, b"written")
        self._put_changed()
        (self.path / probe).unlink()
        self._put_changed()

    def remove_probes(self) -> None:
        """Remove the probes of earlier runs that could not delete. Call it when no process makes a probe."""
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
            stamps = self._stamps()
            for name in self._uploaded.keys() - stamps.keys():
                (self._root / name).unlink()
                del self._uploaded[name]
            for name in sorted(stamps, key=stamps.__getitem__):
                if self._uploaded.get(name) != stamps[name]:
                    self._put_file(name)
                    self._uploaded[name] = stamps[name]

    def _put_file(self, name: str) -> None:
        """Upload a file. If it was removed since it was listed, the next call removes it from the store."""
        try:
            (self._root / name).put(self.path / name)
        except MeshwrightError:
            if (self.path / name).exists():  # then the failure is the store's
                raise

    def _stamps(self) -> dict[str, Stamp]:
        stamps = {}
        for file in self.path.rglob("*"):
            with suppress(FileNotFoundError):  # removed just now
                if file.is_file() and file.suffix not in _UNFINISHED:
                    stat = file.stat()
                    stamps[file.relative_to(self.path).as_posix()] = (stat.st_mtime_ns, stat.st_size)
        return stamps


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
def _on_this_machine(directory: str) -> Iterator[None]:
    """Turn an error of the local disk into one that names the disk."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the files of a run in a store are first written to the local disk, and {directory} cannot be "
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
