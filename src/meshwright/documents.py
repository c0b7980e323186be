"""JSON that anybody may have written or damaged: what it says, or one kind of error.

Python's parser has several: ValueError, RecursionError for what is nested deeply, UnicodeDecodeError. And
what it takes may be nested so deeply that nothing else can go through it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

DEEPEST = 100
"""How deeply values may be nested: far more than programs write, and less than recursive functions take."""


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
