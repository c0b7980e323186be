"""When a run went back to an earlier step, as it has noted itself: a line of JSON each time."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from meshwright.documents import parse_object, read_file

WENT_BACK = "attempts/went_back.jsonl"
"""The file in a run directory."""


@dataclass(frozen=True)
class Back:
    """A run went back."""

    time: float
    """In seconds since 1970."""
    to: int
    """The step that it went on from."""
    newest: int
    """The newest step of which there was a checkpoint."""
    mark: str
    """What the names of the checkpoints end in that were set aside."""


def times_back(directory: Path) -> list[Back]:
    """Return when the run in `directory` went back, in order; lines that cannot be read are left out."""
    path, found = directory / WENT_BACK, []
    if path.is_file():
        for line in read_file(path).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = parse_object(line)
                back = Back(float(told["time"]), int(told["to"]), int(told["newest"]), str(told["mark"]))
                found.append(back)
    return found
