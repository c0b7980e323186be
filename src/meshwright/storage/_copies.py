"""Files at an address as files of this machine, and the other way."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.documents import read_file
from meshwright.errors import InputError, UsageError, printable
from meshwright.storage._path import ObjectPath, location
from meshwright.storage._place import local_path
from meshwright.storage._store import Entry

log = logging.getLogger("meshwright")

CHECKPOINTS = "checkpoints"
"""The folder of a run that is never copied: it is large, and read where it is."""
_OF_A_RUN = {"experiment.txt", "metrics.jsonl"}
"""Files by which a directory is known for a run's."""
_LONGEST_NAME = 255
"""Bytes, on the file systems of Linux and macOS."""
_BLOCK_BYTES = 1 << 26


@contextmanager
def local_copy(place: str | Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[Path]:
    """Give a directory with what is at `place`: that itself, or of an address a copy for the time being.

    Args:
      place: a directory, or an address; or a single file, which in the copy is a directory with the file.
      wanted: says of a relative name, `logs/process-00000.log`, whether it is to be copied. Checkpoints,
        of the run that `place` is or of those below it, never are.

    Keys that would be files elsewhere, or none, as `logs/../../x` or `logs//x`, are left out with a warning:
    whoever may write to the store chooses them. The copies are as old as what they are copies of. What is
    not there makes an empty directory.

    Raises:
      UsageError: the address cannot be opened.
      MeshwrightError: the store cannot be read.
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
    """Give a directory: `place`, or for an address a temporary one, whose files are put there at the end.

    After an error they are put nowhere; the temporary directory is deleted in any case.

    Raises:
      UsageError: the address cannot be opened.
      MeshwrightError: at the end, if it cannot be written to.
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
    """Give the path to write a file to that is to be at `place`, as `put_at` does for directories."""
    if not isinstance(path := location(place), ObjectPath):
        yield local_path(place)
        return
    if not path.key:
        raise UsageError(f"{place} names a bucket and nothing in it: expected {place}/path.")
    with put_at(str(path.parent)) as directory:
        yield directory / path.name


def read_text(place: str | Path) -> str:
    """Return what is in a small file.

    Raises:
      OSError: there is none, or this is no file; or a file on this machine cannot be read.
      InputError: it is no text.
      MeshwrightError: the store cannot be read.
    """
    path = location(place)
    try:
        return (path.read_bytes() if isinstance(path, ObjectPath) else read_file(local_path(place))).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is damaged: it is no text in UTF-8 ({error}). Copy it again.") from None


def _files(root: ObjectPath) -> Iterator[tuple[str, ObjectPath, Entry]]:
    """Yield the relative name, the place and the entry of each file below `root`, or of `root` itself."""
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
    """Copy a file to this name below a directory. One that cannot have that name is left out, and told."""
    wrong = _why_no_name(name)
    try:
        if wrong is None:
            _get(path, entry, directory / name)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        wrong = "another is a folder of its name, or the other way"
    if wrong is not None:
        log.warning("%s is left out: %s", printable(str(path), keep=""), wrong)


def _why_no_name(name: str) -> str | None:
    """Return why a key below an address is no name of a file below a directory; None if it is one."""
    if "\\" in name or "\0" in name:
        return "as a file it would be elsewhere than its key says"
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
