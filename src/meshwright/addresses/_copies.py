"""Files at an address as files of this machine, and the other way."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meshwright.addresses._address import connect, is_address, local_path, telling
from meshwright.errors import printable

log = logging.getLogger("meshwright")

CHECKPOINTS = "checkpoints"
"""The folder of a run that is never copied: it is large, and read where it is."""
_OF_A_RUN = {"experiment.txt", "metrics.jsonl"}
"""Files by which a directory is known for a run's."""
_LONGEST_NAME = 255
"""Bytes, on the file systems of Linux and macOS."""


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
      UsageError: fsspec does not know the address.
      MeshwrightError: the store cannot be read.
    """
    if not is_address(place):
        yield local_path(place)
        return
    filesystem, root = connect(str(place))
    with tempfile.TemporaryDirectory(prefix="meshwright-copy-") as temporary:
        with telling(f"{place} cannot be read"):
            for name, path in _files(filesystem, root):
                if wanted(name):
                    _get_below(Path(temporary), name, filesystem, path)
        yield Path(temporary)


@contextmanager
def put_at(place: str | Path) -> Iterator[Path]:
    """Give a directory: `place`, or for an address a temporary one, whose files are put there at the end.

    After an error they are put nowhere; the temporary directory is deleted in any case.

    Raises:
      UsageError: fsspec does not know the address.
      MeshwrightError: at the end, if it cannot be written to.
    """
    if not is_address(place):
        yield local_path(place)
        return
    filesystem, root = connect(str(place))
    with tempfile.TemporaryDirectory(prefix="meshwright-put-") as temporary:
        yield Path(temporary)
        with telling(f"{place} cannot be written to"):
            for file in sorted(Path(temporary).rglob("*")):
                if file.is_file():
                    filesystem.put_file(str(file), f"{root}/{file.relative_to(temporary).as_posix()}")


@contextmanager
def put_file_at(place: str | Path) -> Iterator[Path]:
    """Give the path to write a file to that is to be at `place`, as `put_at` does for directories."""
    if not is_address(place):
        yield local_path(place)
        return
    name = str(place).rpartition("/")[2]
    with put_at(str(place).removesuffix(name)) as directory:
        yield directory / name


def _files(filesystem: Any, root: str) -> Iterator[tuple[str, str]]:
    """Yield the relative name and the path of each file below `root`, or of `root` itself, if it is one."""
    filesystem.invalidate_cache()  # of listings, which others' files are not in
    with suppress(FileNotFoundError):
        for folder, folders, names in filesystem.walk(root, on_error="raise"):
            if folder == root or _OF_A_RUN.intersection(names):
                folders[:] = [name for name in folders if name != CHECKPOINTS]
            for name in names:
                if name:
                    yield f"{folder}/{name}"[len(root) + 1 :], f"{folder}/{name}"
                elif folder == root and names == [""]:  # it is a file
                    yield root.rpartition("/")[2], root
                # Else it stands for a folder, as consoles of stores make such objects.


def _get_below(directory: Path, name: str, filesystem: Any, path: str) -> None:
    """Copy a file to this name below a directory. One that cannot have that name is left out, and told."""
    wrong = _why_no_name(name)
    try:
        if wrong is None:
            _get(filesystem, path, directory / name)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        wrong = "another is a folder of its name, or the other way"
    if wrong is not None:
        log.warning("%s is left out: %s", printable(path, keep=""), wrong)


def _why_no_name(name: str) -> str | None:
    """Return why a key below an address is no name of a file below a directory; None if it is one."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        return "as a file it would be elsewhere than its key says"
    if any(len(part.encode(errors="surrogatepass")) > _LONGEST_NAME for part in parts):
        return f"a name is longer than {_LONGEST_NAME} bytes"
    return None


def _get(filesystem: Any, path: str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    filesystem.get_file(path, str(to))
    with suppress(NotImplementedError):  # of stores that do not say
        then = filesystem.modified(path).timestamp()
        os.utime(to, (then, then))
