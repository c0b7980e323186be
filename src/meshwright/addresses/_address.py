"""What an address is, and the file system behind it.

Of file systems only the methods for one file are used, `put_file` and the like: those for many take names
with brackets in them for patterns.
"""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.documents import read_file
from meshwright.errors import InputError, MeshwrightError, UsageError

MAX_NAME_BYTES = 255
"""Of a file's name, on all common disks."""
INSTEAD = (
    "Give a path of this machine. `meshwright.addresses` makes one for an address: `local_copy` of what is "
    "there, `mirrored` for files that are put there while they are written."
)
_MANGLED = re.compile("([a-z][a-z0-9+.-]+):/(?!/)")
_DOUBLED = re.compile("(?<=[^/:])//+")
"""Slashes too many, but for those of `hdfs:///a` and of an address in another, `zip://a::s3://b`."""


def is_address(place: str | Path) -> bool:
    """Return whether a place is not a path on this machine; `file:///tmp/run` is one."""
    return "://" in str(place) and not str(place).startswith("file://")


def local_path(place: str | Path, instead: str = INSTEAD) -> Path:
    """Return the path of a place on this machine, with `~` resolved.

    Args:
      place: a path, or `file:///tmp/run`.
      instead: what to do where it is an address.

    Raises:
      UsageError: it is an address, or was one before it was made a `Path`, or is empty.
    """
    text = str(place)
    if not text:
        raise UsageError("a path is empty: a variable that is not set, perhaps. The directory here is `.`.")
    if is_address(text):
        raise UsageError(f"{text} is an address, and this takes none.\n  {instead}")
    if mangled := _MANGLED.match(text):
        raise UsageError(f"{text} was an address before it was a Path: give it as text, {mangled[1]}://….")
    return Path(text.removeprefix("file://")).expanduser()


def join(place: str | Path, name: str) -> str:
    """Return the place of what has this relative name in `place`."""
    return f"{str(place).rstrip('/')}/{name}" if is_address(place) else str(local_path(place) / name)


def is_file_name(name: str) -> bool:
    """Return whether a name can be that of one file, and be shown: not a path, and all of it prints."""
    fits = name.isprintable() and "/" not in name and len(name.encode()) <= MAX_NAME_BYTES
    return fits and name not in ("", ".", "..")


def connect(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it, its slashes single as in a directory's.

    Raises:
      UsageError: it names no bucket; or fsspec, or its package for this kind of address, is not installed, or
        knows no such kind.
    """
    scheme, _, within = address.partition("://")
    if not within.strip("/"):
        raise UsageError(f"{address} names no bucket: expected {scheme}://bucket/path.")
    try:
        filesystem, path = importlib.import_module("fsspec.core").url_to_fs(_DOUBLED.sub("/", address))
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"{address} cannot be opened: {error}.\n  Install what fsspec needs for it (meshwright[remote], "
            "and s3fs for s3://, gcsfs for gs://), or give a directory of this machine."
        ) from None
    return filesystem, path.rstrip("/")


def read_text(place: str | Path) -> str:
    """Return what is in a small file.

    Raises:
      OSError: there is none, or this is no file; or a file on this machine cannot be read.
      InputError: it is no text.
      MeshwrightError: the store cannot be read.
    """
    try:
        return _read_bytes(str(place)).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{place} is damaged: it is no text in UTF-8 ({error}). Copy it again.") from None


def _read_bytes(place: str) -> bytes:
    if not is_address(place):
        return read_file(local_path(place))
    filesystem, path = connect(place)
    with telling(f"{place} cannot be read", FileNotFoundError, IsADirectoryError):
        return filesystem.cat_file(path)


@contextmanager
def telling(what: str, *others: type[Exception]) -> Iterator[None]:
    """Say what failed in a store, whose packages' errors have nothing in common; `others` pass as they are.

    Raises:
      MeshwrightError: something did.
    """
    try:
        yield
    except (MeshwrightError, *others):
        raise
    except TimeoutError as error:
        raise MeshwrightError(f"{what}: {str(error) or 'the store does not answer'}") from error
    except Exception as error:
        raise MeshwrightError(f"{what}: {str(error) or type(error).__name__}") from error
