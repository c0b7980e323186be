"""The settings that all processes must share. They are compared before the processes run one program.

These are the lines of the description, except for settings that may differ between processes, and a digest of
the code of each function in it. No compiled program shows the code of a policy or of a function that makes
batches.
"""

import functools
import hashlib
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

from meshwright.base._internal import description
from meshwright.engine._describe import MAX_DEPTH, MAX_ROWS, describe
from meshwright.engine._made_from import made_from

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
    both = {**settings, **{f"{path}: code": digest for path, digest in code if digest}}
    return {path: value for path, value in both.items() if not _may_differ(path)}


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
    found = hashlib.sha256(code.co_code)
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        found.update(_constant(constant).encode())
    return found.hexdigest()[:12]


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return _digest(constant)
    if isinstance(constant, frozenset):  # its order differs between processes
        return repr(sorted(map(repr, constant)))
    return repr(constant)
