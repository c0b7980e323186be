"""What an address is, and the file system behind it.

Of file systems only the methods for one file are used, `put_file` and the like: those for many take names
with brackets in them for patterns.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError, UsageError


def is_address(place: str | Path) -> bool:
    """Return whether a place is not a path on this machine; `file:///tmp/run` is one."""
    return "://" in str(place) and not str(place).startswith("file://")


def local_path(place: str | Path) -> Path:
    """Return the path of a place on this machine, with `~` resolved."""
    return Path(str(place).removeprefix("file://")).expanduser()


def join(place: str | Path, name: str) -> str:
    """Return the place of what has this relative name in `place`."""
    return f"{str(place).rstrip('/')}/{name}" if is_address(place) else str(local_path(place) / name)


def connect(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
      UsageError: fsspec, or its package for this kind of address, is not installed, or knows no such kind.
    """
    try:
        filesystem, path = importlib.import_module("fsspec.core").url_to_fs(address)
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
      MeshwrightError: the store cannot be read.
    """
    if not is_address(place):
        return local_path(place).read_text(encoding="utf-8")
    filesystem, path = connect(str(place))
    with telling(f"{place} cannot be read", FileNotFoundError, IsADirectoryError):
        return filesystem.cat_file(path).decode()


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
    except Exception as error:
        raise MeshwrightError(f"{what}: {error or type(error).__name__}") from error
