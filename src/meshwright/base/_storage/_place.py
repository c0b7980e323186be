"""Distinguishes URLs of stores, `s3://bucket/run`, from local paths."""

import re
from pathlib import Path

from meshwright.errors import UsageError

MAX_NAME_BYTES = 255
"""The longest file name, in bytes, on all common disks."""
INSTEAD = (
    "Give a local path. `mw.data.local_copy` downloads a URL, `mw.data.mirrored` "
    "uploads files while they are written."
)
_MANGLED = re.compile("([a-z][a-z0-9+.-]+):/(?!/)")


def is_address(place: str | Path) -> bool:
    """Return whether a place is the URL of a store; `file:///tmp/run` is a local path."""
    return "://" in str(place) and not str(place).startswith("file://")


def local_path(place: str | Path, instead: str = INSTEAD) -> Path:
    """Return a local path, with `~` resolved."""
    text = str(place)
    if not text:
        raise UsageError(
            "a path is empty, perhaps from a variable that is not set. The current directory is `.`."
        )
    if is_address(text):
        raise UsageError(f"{text} is a URL of a store, but a local path is needed.\n  {instead}")
    if mangled := _MANGLED.match(text):
        raise UsageError(
            f"{text} was a URL before it was made a Path: give it as a string, {mangled[1]}://…."
        )
    return Path(text.removeprefix("file://")).expanduser()


def join(place: str | Path, name: str) -> str:
    """Return the path or URL of a file in a directory."""
    return f"{str(place).rstrip('/')}/{name}" if is_address(place) else str(local_path(place) / name)


def is_file_name(name: str) -> bool:
    """Return whether a text can be the name of one file: printable, not too long, and not a path."""
    fits = name.isprintable() and "/" not in name and len(name.encode()) <= MAX_NAME_BYTES
    return fits and name not in ("", ".", "..")
