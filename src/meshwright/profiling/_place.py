"""Where profiles are written to: a directory, or through a temporary one an address that fsspec knows."""

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meshwright.errors import UsageError


def is_address(directory: str | Path) -> bool:
    """Return whether it is no directory on a disk."""
    return "://" in str(directory)


@contextmanager
def on_disk(directory: str | Path) -> Iterator[Path]:
    """Give a directory on a disk; at the end put what is in it at the address, if `directory` is one.

    A temporary one is deleted in any case, and put nowhere after an error.

    Raises (at the end): what a file system raises that cannot be written to.
    """
    if not is_address(directory):
        yield Path(directory)
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-profile-") as temporary:
        yield Path(temporary)
        filesystem, path = connect(str(directory))
        filesystem.put(f"{temporary}/", f"{path}/", recursive=True)  # with the slashes: the contents of one


def connect(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
      UsageError: fsspec, or its package for this kind of address, is not installed, or knows no such kind.
    """
    try:
        return importlib.import_module("fsspec.core").url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise UsageError(
            f"profiles cannot be written to {address}: {error}.\n  Install what fsspec needs for it "
            "(meshwright[remote], and s3fs for s3://, gcsfs for gs://), or give a directory on a disk."
        ) from None
