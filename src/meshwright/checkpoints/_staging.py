"""Staging directories: an export is written beside its destination, and moved there when it is complete.

hf/
  .model.safetensors.unfinished/     if the process is killed, the next export removes it
    .lock, .lock.holder              held by the process that writes here; the second file names it
    model.safetensors                is moved to hf/ when it is complete
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshwright.checkpoints import _directory
from meshwright.errors import MeshwrightError

UNFINISHED = ".unfinished"
"""The suffix of a directory that a save has not finished."""


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """Yield an empty directory on the disk of `final`, to write files in and rename them; then remove it."""
    place = final.with_name(f".{final.name}{UNFINISHED}")
    with _held(place):
        try:
            _empty(place)
            with errors_naming(final):
                yield place
        finally:
            _empty(place)


@contextmanager
def errors_naming(final: object) -> Iterator[None]:
    """Turn an `OSError` into an error that names the destination."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise MeshwrightError(
            f"{final} was not written: {error.strerror}{where}. Nothing is left of it. Remove the cause, or "
            "give another destination."
        ) from None


def _empty(place: Path) -> None:
    for entry in place.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif not entry.name.startswith(_directory.LOCK):
            entry.unlink()


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Create a directory and lock it; at the end, remove the directory and the lock."""
    held = _directory.lock_local(place)
    try:
        yield
    finally:
        held.remove()
