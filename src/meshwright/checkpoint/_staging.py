"""Where an export is put together: beside the place where it will be, by one process at a time.

hf/
  .model.safetensors.unfinished/     what a killed process left of it, the next one removes
    .lock, .lock.holder              held by the process that writes here; the second names it
    model.safetensors                takes its place when it is whole
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.checkpoint import _directory
from meshwright.errors import MeshwrightError

UNFINISHED = ".unfinished"
"""The suffix of a directory that a save has not finished."""


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """Yield an empty directory on the disk of `final`, from which that is to be renamed; then remove it.

    Raises:
      UsageError: Another process writes `final`, or where it is to be cannot be written to.
      MeshwrightError: The disk is full, say.
    """
    place = final.with_name(f".{final.name}{UNFINISHED}")
    with _held(place):
        try:
            _empty(place)
            with told_of(final):
                yield place
        finally:
            _empty(place)


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
        elif not entry.name.startswith(_directory.LOCK):
            entry.unlink()


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Make a directory and hold it, and remove both."""
    held = _directory.hold(place)
    try:
        yield
    finally:
        held.remove()
