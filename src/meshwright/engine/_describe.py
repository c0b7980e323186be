"""Descriptions as text with one line `dotted.path = value` for each setting, and their differences.

Each field of a description has a line of its own. A value is on one line together with the values that it
was made from, or on several lines if these were made from further values:

    input.batch_size = 64
    optimizer = optax.chain
    optimizer.0 = optax.clip_by_global_norm(max_norm=1.0)
    optimizer.1 = optax.scale(step_size=-0.1)

The text depends on the description alone, so it can be kept beside the code and compared after a change.
"""

import functools
import hashlib
import itertools
import re
import types
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
    first, second = (settings if isinstance(settings, str) else describe(settings) for settings in (a, b))
    return description.differences(first, second)


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


_MAY_DIFFER = ("workdir", "save.directory", "logging.trackers", "profile")
"""Settings that may differ between processes. `_directory` checks that all see the same run directory."""
_LOCAL_PATH = re.compile(r"'(?![a-z0-9]+://)[^']*[/\\][^']*'|'file:[^']*'")


def comparable_settings(described: Any) -> dict[str, str]:
    """Return the settings of a description that must be the same on all processes, by dotted path.

    Local paths are left out, because each machine may have its own. So are patterns with a slash, because
    the compiled program shows what they decide.
    """
    lines = description.values(describe(described))
    settings = {path: _LOCAL_PATH.sub("<path>", value) for path, value in lines.items()}
    code = itertools.islice(_code("", described, ()), MAX_ROWS)
    lines_and_code = {**settings, **{f"{path}: code": digest for path, digest in code if digest}}
    return {path: value for path, value in lines_and_code.items() if not _may_differ(path)}


def _may_differ(path: str) -> bool:
    return any(path == name or path.startswith((f"{name}.", f"{name}:")) for name in _MAY_DIFFER)


def _code(path: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield the path of each value that `value` was made from, with a digest of its code, or None."""
    if id(value) in above or len(above) > MAX_DEPTH:
        return
    function = _unwrapped(value)
    yield path, _digest(function.__code__) if isinstance(function, types.FunctionType) else None
    for key, part in made_from(value)[1].items():
        yield from _code(f"{path}.{key}" if path else key, part, (*above, id(value)))


def _unwrapped(value: Any) -> Any:
    while True:
        match value:
            case functools.partial():
                value = value.func
            case types.MethodType():
                value = value.__func__
            case _ if callable(value) and hasattr(value, "__wrapped__"):
                value = value.__wrapped__
            case _:
                return value


def _digest(code: types.CodeType) -> str:
    """Return a digest of what code does. Paths, line numbers and addresses in memory do not change it."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        digest.update(_constant(constant).encode())
    return digest.hexdigest()[:12]


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return _digest(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, constant)))
    return repr(constant)
