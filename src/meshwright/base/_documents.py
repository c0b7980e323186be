"""Safe reading of files and JSON that anybody may have written or damaged.

Python's JSON parser raises several kinds of errors: ValueError, RecursionError, UnicodeDecodeError. It also
accepts values nested so deeply that other functions cannot walk through them. Here there is one kind of
error.
"""

import errno
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

DEEPEST = 100
"""Largest depth of nested values: far more than programs write, and less than Python's limit of recursion."""


def read_file(path: Path) -> bytes:
    """Return the content of a file."""
    with open_file(path) as file:
        return file.read()


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading."""
    if not stat.S_ISREG(path.stat().st_mode):
        # The number of a pipe, which is in `OF_THE_MACHINE`: commands then say it in one sentence.
        raise OSError(errno.ESPIPE, "is not an ordinary file", str(path))
    return path.open("rb")


def parse_json(content: str | bytes) -> Any:
    """Return the value of a JSON text. It may be nested deeply: call `check_depth` to refuse that."""
    try:
        if isinstance(content, bytes):
            content = content.decode(json.detect_encoding(content), "surrogatepass")
        return _DECODER.decode(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _with_keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has the key {next(x for x in keys if keys.count(x) > 1)!r:.80} twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_with_keys_once)


def parse_object(content: str | bytes) -> dict[str, Any]:
    """Return the JSON object in a text."""
    found = parse_json(content)
    if not isinstance(found, dict):
        raise ValueError(f"expected an object, found {found!r:.40}")
    check_depth(found)
    return found


def check_unicode(text: str) -> None:
    r"""Check that a text has no half of a surrogate pair, which JSON may write as `\ud800` but UTF-8 may
    not.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f"character {error.start + 1} is {half}, half of a surrogate pair") from None


def check_depth(value: Any) -> None:
    """Check that recursive functions can walk through a value of JSON."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inner(each)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEEPEST} levels deep")


def _inner(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()
