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
    return dict(pair for name, _, text in rows for pair in _taken_apart(name, text))


def differences(a: str, b: str) -> list[Difference]:
    """Return the settings that differ between two descriptions."""
    values_a, values_b = values(a), values(b)
    paths = [*values_a, *(path for path in values_b if path not in values_a)]
    pairs = {path: (values_a.get(path), values_b.get(path)) for path in paths}
    # Values are also equal as numbers: optax's schedules turn 900 into 900.0.
    are_equal = {path: a == b or _number(a) == _number(b) is not None for path, (a, b) in pairs.items()}
    return [Difference(path, *pairs[path]) for path in paths if not are_equal[path]]


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
