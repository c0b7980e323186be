"""Where an export is put together: beside the place where it will be, by one process at a time.

hf/
  .model.safetensors.unfinished/     what a killed process left of it, the next one removes
    .lock                            locked by the process that writes here, and names it
    model.safetensors                takes its place when it is whole
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from meshwright.checkpoint import _directory
from meshwright.errors import MeshwrightError

UNFINISHED = ".unfinished"
_LOCK = ".lock"


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """Yield an empty directory on the disk of `final`, from which that is to be renamed; then remove it.

    Raises:
      UsageError: Another process writes `final`, or where it is to be cannot be written to.
      MeshwrightError: The disk is full, say.
    """
    place = final.with_name(f".{final.name}{UNFINISHED}")
    with _locked(place):
        try:
            _empty(place)
            with told_of(final):
                yield place
        finally:
            _empty(place)
            with suppress(OSError):
                (place / _LOCK).unlink()
                place.rmdir()


@contextmanager
def told_of(final: object) -> Iterator[None]:
    """Say of what goes wrong with files what was to be written.

    Raises:
      MeshwrightError: Something did.
    """
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise MeshwrightError(
            f"{final} was not written: {error.strerror}{where}. Nothing is left of it. Mend that, or give "
            "another destination."
        ) from None


def _empty(place: Path) -> None:
    for entry in place.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != _LOCK:
            entry.unlink()


def _locked(place: Path) -> TextIO:
    """Make a directory and lock it; closing the returned file gives it back."""
    # One that was opened just before its holder removed it locks nothing.
    while not os.fstat((lock := _directory.lock(place)).fileno()).st_nlink:
        lock.close()
    return lock
