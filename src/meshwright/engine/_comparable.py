"""The settings that processes compare before they run one program.

That is the description, without what each process may have for itself, and beside it a digest of the code of
each function in it: of a policy, or of what makes batches of examples, no compiled program tells.
"""

import functools
import hashlib
import itertools
import re
import types
from collections.abc import Iterator
from typing import Any

from meshwright import description
from meshwright.engine._describe import MAX_DEPTH, MAX_ROWS, describe
from meshwright.engine._made_from import made_from

OWN = ("workdir", "save.directory", "logging.trackers", "profile")
"""Settings that a process may have for itself. That all see one directory is looked at where it is opened."""
_LOCAL_PATH = re.compile(r"'(?![a-z0-9]+://)[^']*[/\\][^']*'|'file:[^']*'")


def comparable_settings(described: Any) -> dict[str, str]:
    """Return, by path, what must be the same on all processes of a description, an experiment or settings.

    Paths on a machine are not among it: each machine may have its own. (Nor are patterns with a slash: of
    what they decide the program tells.)
    """
    said = description.values(describe(described))
    settings = {path: _LOCAL_PATH.sub("<path>", value) for path, value in said.items()}
    code = itertools.islice(_code("", described, ()), MAX_ROWS)
    both = {**settings, **{f"{path}: code": digest for path, digest in code if digest}}
    return {path: value for path, value in both.items() if not _is_own(path)}


def _is_own(path: str) -> bool:
    return any(path == own or path.startswith((f"{own}.", f"{own}:")) for own in OWN)


def _code(path: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, str | None]]:
    """Yield all that `value` was made from: a digest of the code where it is a function, else None."""
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
    """Return a digest of what code does: of no path, line or address."""
    found = hashlib.sha256(code.co_code)
    found.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        found.update(_constant(constant).encode())
    return found.hexdigest()[:12]


def _constant(constant: Any) -> str:
    if isinstance(constant, types.CodeType):
        return _digest(constant)
    if isinstance(constant, frozenset):  # whose order is another in each process
        return repr(sorted(map(repr, constant)))
    return repr(constant)
