"""The texts that a run's model wrote, from `outputs/generation`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import parse_object, read_file

_MOST_TEXTS, _MOST_CHARACTERS = 20, 4000


@dataclass(frozen=True)
class Texts:
    """The newest texts, of one step."""

    step: int
    """The step."""
    rows: Sequence[tuple[str, str]]
    """Each prompt, and the text after it. There are at most 20, and long ones are cut."""


def texts_in(directory: Path) -> Texts | None:
    """Return the newest texts; None if there are none."""
    files = sorted((directory / "outputs/generation").glob("step_*.jsonl"))
    if not files:
        return None
    lines = [parse_object(line) for line in read_file(files[-1]).splitlines()[:_MOST_TEXTS]]
    if not all(isinstance(line.get(key), str) for line in lines for key in ("prompt", "text")):
        return None  # outputs of an evaluation of this name
    rows = [(line["prompt"][:_MOST_CHARACTERS], line["text"][:_MOST_CHARACTERS]) for line in lines]
    return Texts(int(files[-1].stem.removeprefix("step_")), rows)
