"""Addresses in stores, `s3://bucket/run`, and paths of this machine, told apart."""

import re
from pathlib import Path

from meshwright.errors import UsageError

MAX_NAME_BYTES = 255
"""Of a file's name, on all common disks."""
INSTEAD = (
    "Give a path of this machine. `meshwright.storage` makes one for an address: `local_copy` of what is "
    "there, `mirrored` for files that are put there while they are written."
)
_MANGLED = re.compile("([a-z][a-z0-9+.-]+):/(?!/)")


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
