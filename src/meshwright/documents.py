"""Files and JSON that anybody may have written or damaged: what they say, or one kind of error.

Python's parser has several: ValueError, RecursionError for what is nested deeply, UnicodeDecodeError. And
what it takes may be nested so deeply that nothing else can go through it.
"""

import errno
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

DEEPEST = 100
"""How deeply values may be nested: far more than programs write, and less than recursive functions take."""


def read_file(path: Path) -> bytes:
    """Return what is in a file.

    Raises: as `open_file`.
    """
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading.

    Raises:
      OSError: there is none, or it is no ordinary one: a pipe or a device may have no end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no ordinary file", str(path))
    return path.open("rb")


def parse_json(content: str | bytes) -> Any:
    """Return what JSON says; deeply nested values are refused by `check_depth`, not here.

    Raises:
      ValueError: it is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_object(content: str | bytes) -> dict[str, Any]:
    """Return an object of JSON that is not nested deeply.

    Raises:
      ValueError: it is something else.
    """
    found = parse_json(content)
    if not isinstance(found, dict):
        raise ValueError(f"an object was expected, not {found!r:.40}")
    check_depth(found)
    return found


def check_depth(value: Any) -> None:
    """Check that what JSON says can be gone through by recursive functions.

    Raises:
      ValueError: it is nested too deeply.
    """
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inner(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()
