"""Files of a store as local files, and the reverse."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.base._files import read_file
from meshwright.base._storage._path import ObjectPath, location
from meshwright.base._storage._place import local_path
from meshwright.base._storage._store import Entry
from meshwright.errors import InputError, UsageError, printable

log = logging.getLogger("meshwright")

CHECKPOINTS = "checkpoints"
"""The folder of a run that is never copied: it is large, and checkpoints are read from the store itself."""
_OF_A_RUN = {"experiment.txt", "metrics.jsonl"}
"""Files that only a run's directory has."""
_LONGEST_NAME = 255
"""Bytes, on the file systems of Linux and macOS."""
_BLOCK_BYTES = 1 << 26


@contextmanager
def local_copy(place: str | Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Yield a local directory with the files at `place`: a local directory itself, or a temporary copy.

    Checkpoints of runs are never copied. Keys that are no relative paths, such as `logs/../../x` or
    `logs//x`, are skipped with a warning, because anyone who may write to the store can choose them. Copies
    keep the times of their originals. If nothing is at `place`, the directory is empty.

    Args:
      place: A local directory, or the URL of a directory or of one file in a store. The copy of a file is a
        directory that holds the file.
      wanted: Returns whether to copy a file, given its relative name, `logs/process-00000.log`.

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
    if not isinstance(root := location(place), ObjectPath):
        yield local_path(place)
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-copy-") as temporary:
        for name, path, entry in _files(root):
            if wanted(name):
                _get_below(Path(temporary), name, path, entry)
        yield Path(temporary)


@contextmanager
def put_at(place: str | Path) -> Iterator[Path]:
    """Yield a directory to write files to: a local directory itself, or a temporary one, uploaded at the end.

    After an error nothing is uploaded. The temporary directory is deleted in any case.
    """
    if not isinstance(root := location(place), ObjectPath):
        yield local_path(place)
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-put-") as temporary:
        yield Path(temporary)
        for file in sorted(Path(temporary).rglob("*")):
            if file.is_file():
                (root / file.relative_to(temporary).as_posix()).put(file)


@contextmanager
def put_file_at(place: str | Path) -> Iterator[Path]:
    """Yield a path to write one file to: a local path itself, or a temporary one, uploaded at the end."""
    if not isinstance(path := location(place), ObjectPath):
        yield local_path(place)
        return
    if not path.key:
        raise UsageError(f"{place} names only a bucket: expected {place}/path.")
    with put_at(str(path.parent)) as directory:
        yield directory / path.name


def read_text(place: str | Path) -> str:
    """Return the text of a small file."""
    path = location(place)
    try:
        return (path.read_bytes() if isinstance(path, ObjectPath) else read_file(local_path(place))).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is damaged: it is not UTF-8 text ({error}). Copy it again.") from None


def _files(root: ObjectPath) -> Iterator[tuple[str, ObjectPath, Entry]]:
    """Yield the relative name, the path and the entry of each file below `root`, or of `root` itself."""
    if found := root.look():
        yield root.name, root, found
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


def _get(path: ObjectPath, entry: Entry, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    with to.open("wb") as file:
        for first in range(0, entry.nbytes, _BLOCK_BYTES):
            file.write(path.answer(path.request(first, first + _BLOCK_BYTES)))
    if entry.modified is not None:
        os.utime(to, (entry.modified, entry.modified))
