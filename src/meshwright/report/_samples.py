"""The samples of a run's model, from `outputs/samples`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import parse_object, read_file

_MOST_ROWS, _MOST_CHARACTERS = 20, 4000
_MOST_BYTES = 1 << 20
"""Of a picture; the page contains the pictures."""


@dataclass(frozen=True)
class Samples:
    """The newest samples, of one step."""

    step: int
    """The step."""
    names: Sequence[str]
    """The names of the values in a sample."""
    rows: Sequence[Mapping[str, str | float | bytes]]
    """At most 20 samples: texts, of which long ones are cut, numbers, and pictures as PNG files."""


def samples_in(directory: Path) -> Samples | None:
    """Return the newest samples; None if there are none."""
    files = sorted((directory / "outputs/samples").glob("step_*.jsonl"))
    if not files:
        return None
    lines = [parse_object(line) for line in read_file(files[-1]).splitlines()[:_MOST_ROWS]]
    rows = [{name: _value(files[-1], value) for name, value in line.items()} for line in lines]
    names = dict.fromkeys(name for row in rows for name in row)
    return Samples(int(files[-1].stem.removeprefix("step_")), [*names], rows)


def _value(file: Path, value: Any) -> str | float | bytes:
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else str(value)[:_MOST_CHARACTERS]
    folder, _, name = value.partition("/")
    if folder == file.stem and name.endswith(".png") and "/" not in name:
        content = read_file(file.with_name(folder) / name)
        return content if len(content) <= _MOST_BYTES else value
    return value[:_MOST_CHARACTERS]
