"""Local paths, the URLs of stores beside them, and folders of this user for caches."""

import functools
import logging
import os
import re
import tempfile
from pathlib import Path

from meshwright.errors import UsageError

MAX_NAME_BYTES = 255
"""The longest file name, in bytes, on all common disks."""
INSTEAD = (
    "Give a local path. `mw.data.local_copy` downloads a URL, `mw.data.mirrored` "
    "uploads files while they are written."
)
_MANGLED = re.compile("([a-z][a-z0-9+.-]+):/(?!/)")


def is_address(path: str | Path) -> bool:
    """Return whether a path is the URL of a store; `file:///tmp/run` is a local path."""
    return "://" in str(path) and not str(path).startswith("file://")


def local_path(path: str | Path, instead: str = INSTEAD) -> Path:
    """Return a local path, with `~` resolved."""
    text = str(path)
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


def join(directory: str | Path, name: str) -> str:
    """Return the path or URL of a file in a directory."""
    return (
        f"{str(directory).rstrip('/')}/{name}" if is_address(directory) else str(local_path(directory) / name)
    )


def is_file_name(name: str) -> bool:
    """Return whether a text can be the name of one file: printable, not too long, and not a path."""
    fits = name.isprintable() and "/" not in name and len(name.encode()) <= MAX_NAME_BYTES
    return fits and name not in ("", ".", "..")


log = logging.getLogger("meshwright")


def user_cache() -> Path:
    """Return the cache folder of this user: `$XDG_CACHE_HOME/meshwright`, or `~/.cache/meshwright`.

    On machines where that cannot be written, with a read-only home or none, it is a folder of the user in the
    temporary directory, with a warning.
    """
    instead = Path(tempfile.gettempdir(), f"meshwright-cache-{os.getuid()}")
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "meshwright")
        cache.mkdir(parents=True, exist_ok=True)
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
        why = f"{cache} cannot be written"
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        why = str(error)
    _warn(why, instead)
    try:
        instead.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{instead} cannot be made: {error.strerror}. Set XDG_CACHE_HOME.") from None
    return check_owned(instead)


def check_owned(path: Path) -> Path:
    """Return a folder in the temporary directory, where everybody may write."""
    if os.path.lexists(path) and (path.is_symlink() or path.stat().st_uid != os.getuid()):
        raise UsageError(
            f"{path} is a link, or belongs to somebody else. Look at it and remove it, or set TMPDIR."
        )
    return path


@functools.cache
def _warn(why: str, instead: Path) -> None:
    log.warning("%s: programs and tokens are kept in %s. XDG_CACHE_HOME names another.", why, instead)
