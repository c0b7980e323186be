"""An experiment as text, one `dotted.path = value` a line, and in what two of them differ.

What a setting can reach is on a line of its own under the setting's name. Other values are on one line with
what they were made from, or over several where parts of them have parts again:

    input.batch_size = 64
    optimizer = optax.chain
    optimizer.0 = optax.clip_by_global_norm(max_norm=1.0)
    optimizer.1 = optax.scale(step_size=-0.1)

The text depends on the experiment alone, so it can be kept beside the code and compared after a change.
"""

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.experiment._experiment import Evaler, Experiment, Input, Save
from meshwright.experiment._made_from import made_from

MAX_DEPTH = 16
MAX_ROWS = 10_000  # of objects that refer to each other there is no end
UNNAMED = Experiment | Input | Evaler | Save
"""Known by their place; only their fields are shown."""

Row = tuple[str, str]


@dataclass(frozen=True)
class Difference:
    """A dotted path at which two descriptions differ."""

    path: str
    a: str | None
    """What the first says, None where it says nothing."""
    b: str | None

    def __str__(self) -> str:
        a, b = ("nothing" if value is None else value for value in (self.a, self.b))
        return f"{self.path}: {a} → {b}"


def describe(experiment: Experiment) -> str:
    """Return the experiment as text, the same in every process: no addresses, no contents of data."""
    rows = itertools.islice(_rows("", experiment, ()), MAX_ROWS)
    return "".join(f"{path} = {text}\n" for path, text in rows)


def differences(a: Experiment | str, b: Experiment | str) -> list[Difference]:
    """Return in what two experiments, or descriptions of them, differ, by dotted path."""
    before, after = _values(a), _values(b)
    paths = [*before, *(path for path in after if path not in before)]
    found = (Difference(path, before.get(path), after.get(path)) for path in paths)
    return [each for each in found if each.a != each.b]


def _rows(path: str, value: Any, above: tuple[int, ...]) -> Iterator[Row]:
    """Yield the lines of `value`; `above` are the ids of what it is in, so that a cycle ends."""
    whole = "…" if id(value) in above or len(above) > MAX_DEPTH else _plain(value)
    if whole is not None:
        yield path, whole
        return
    name, parts = made_from(value)
    texts = [_plain(part) for part in parts.values()]
    if name and None not in texts and not isinstance(value, UNNAMED):
        arguments = ", ".join(f"{key}={text}" for key, text in zip(parts, texts, strict=True))
        yield path, f"{name}({arguments})"
        return
    if name and not isinstance(value, UNNAMED):
        yield path, name
    for key, part in parts.items():
        yield from _rows(f"{path}.{key}" if path else key, part, (*above, id(value)))


def _plain(value: Any, depth: int = 0) -> str | None:
    """Return the text of a value without parts, or of a list of such; None for others."""
    name, parts = made_from(value)
    if not parts:
        return name
    if name or isinstance(value, Mapping) or depth > 2:
        return None
    texts = [_plain(part, depth + 1) for part in parts.values()]
    return None if None in texts else f"[{', '.join(map(str, texts))}]"


def _values(experiment: Experiment | str) -> dict[str, str]:
    """Return the values by path, each argument of a value that has some by a path of its own."""
    text = experiment if isinstance(experiment, str) else describe(experiment)
    rows = (line.partition(" = ") for line in text.splitlines())
    return {path: value for name, _, said in rows for path, value in _taken_apart(name, said)}


def _taken_apart(path: str, text: str) -> list[Row]:
    called = re.fullmatch(r"([\w.<>]+)(\(.*\))", text)
    try:
        call = ast.parse(f"_{called[2]}", mode="eval").body if called else None
    except SyntaxError:  # an argument such as <type>
        call = None
    if called is None or not isinstance(call, ast.Call) or call.args:
        return [(path, text)]
    arguments = [(f"{path}.{word.arg}", ast.unparse(word.value)) for word in call.keywords]
    return [(path, called[1]), *arguments]
