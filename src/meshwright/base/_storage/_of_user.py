"""Folders of this user, for what can be made again."""

import functools
import logging
import os
import tempfile
from pathlib import Path

from meshwright.errors import UsageError

log = logging.getLogger("meshwright")


def user_cache() -> Path:
    """Return the folder of this user for what can be made again: `$XDG_CACHE_HOME/meshwright`, or
    `~/.cache/meshwright`.

    Where that cannot be written, as on machines that have homes read-only or none, it is a folder of the user
    in the temporary directory, with a warning.
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
