"""Reading of the text that describes an experiment: `dotted.path = value`, one per line.

`engine.describe` writes it. Reading `experiment.txt` needs neither the experiment nor its code.
"""

import ast
import re
from dataclasses import dataclass

from meshwright.base._docstrings import documented


@documented
@dataclass(frozen=True)
class Difference:
    """A setting that differs between two descriptions."""

    path: str
    """Dotted path of the setting."""
    a: str | None
    """Value in the first description; None if it has none."""
    b: str | None
    """Value in the second description; None if it has none."""

    def __str__(self) -> str:
        a, b = ("nothing" if value is None else value for value in (self.a, self.b))
        return f"{self.path}: {a} → {b}"


def values(text: str) -> dict[str, str]:
    """Return the values by dotted path. Each argument of a call such as `adamw(b1=0.9)` has its own path."""
    rows = (line.partition(" = ") for line in text.splitlines())
    return {path: value for name, _, said in rows for path, value in _taken_apart(name, said)}


def differences(a: str, b: str) -> list[Difference]:
    """Return the settings that differ between two descriptions."""
    before, after = values(a), values(b)
    paths = [*before, *(path for path in after if path not in before)]
    found = (Difference(path, before.get(path), after.get(path)) for path in paths)
    return [each for each in found if not _is_same(each.a, each.b)]


def _is_same(a: str | None, b: str | None) -> bool:
    """Return whether two values are equal, also as numbers: optax's schedules turn 900 into 900.0."""
    return a == b or (_number(a) is not None and _number(a) == _number(b))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _taken_apart(path: str, text: str) -> list[tuple[str, str]]:
    called = re.fullmatch(r"([\w.<>]+)(\(.*\))", text)
    try:
        call = ast.parse(f"_{called[2]}", mode="eval").body if called else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # <type>, say; or nested too deeply
        call = None
    if called is None or not isinstance(call, ast.Call) or call.args:
        return [(path, text)]
    arguments = [(f"{path}.{word.arg}", ast.unparse(word.value)) for word in call.keywords]
    return [(path, called[1]), *arguments]
