"""Descriptions as text with one line `dotted.path = value` for each setting, and their differences.

Each field of a description has a line of its own. A value is on one line together with the values that it
was made from, or on several lines if these were made from further values:

    input.batch_size = 64
    optimizer = optax.chain
    optimizer.0 = optax.clip_by_global_norm(max_norm=1.0)
    optimizer.1 = optax.scale(step_size=-0.1)

The text depends on the description alone, so it can be kept beside the code and compared after a change.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.base._internal import Difference, description
from meshwright.engine._made_from import made_from

MAX_DEPTH = 16
MAX_ROWS = 10_000  # objects that refer to each other would make lines without end

Row = tuple[str, str]


def describe(described: Any) -> str:
    """Return a description as text, which is the same in every process: no addresses in memory, no data.

    Args:
      described: An `Experiment`, or a dictionary of settings.

    Example:
      >>> print(mw.engine.describe({"input": {"batch_size": 64}, "optimizer": optax.scale(-0.1)}), end="")
      input.batch_size = 64
      optimizer = optax.scale(step_size=-0.1)
    """
    rows = itertools.islice(_rows("", described, ()), MAX_ROWS)
    return "".join(f"{path} = {text}\n" for path, text in rows)


def differences(a: Any, b: Any) -> list[Difference]:
    """Return the differences between two descriptions, by dotted path."""
    before, after = (each if isinstance(each, str) else describe(each) for each in (a, b))
    return description.differences(before, after)


def _rows(path: str, value: Any, above: tuple[int, ...]) -> Iterator[Row]:
    """Yield the lines of a value."""
    text = "…" if id(value) in above or len(above) > MAX_DEPTH else _plain(value)
    if text is not None:
        yield path, text
        return
    name, parts = made_from(value)
    texts = [_plain(part) for part in parts.values()]
    if name and None not in texts and not _is_known_by_place(value):
        arguments = ", ".join(f"{key}={text}" for key, text in zip(parts, texts, strict=True))
        yield path, f"{name}({arguments})"
        return
    if name and not _is_known_by_place(value):
        yield path, name
    for key, part in parts.items():
        yield from _rows(f"{path}.{key}" if path else key, part, (*above, id(value)))


def _is_known_by_place(value: Any) -> bool:
    """Return whether only the fields of a value are shown, because its path already says what it is."""
    return getattr(type(value), "is_known_by_place", False)


def _plain(value: Any, depth: int = 0) -> str | None:
    """Return the text of a value without parts, or of a list of such values; None for other values."""
    name, parts = made_from(value)
    if not parts:
        return name
    if name or isinstance(value, Mapping) or depth > 2:
        return None
    texts = [_plain(part, depth + 1) for part in parts.values()]
    return None if None in texts else f"[{', '.join(map(str, texts))}]"
