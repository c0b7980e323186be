"""The record of when a run went back to an earlier step: one line of JSON each time."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

from meshwright.base._internal import documented, parse_object, read_file

WENT_BACK = "attempts/went_back.jsonl"
"""The record's file, relative to the run directory."""


@documented
@dataclass(frozen=True)
class Back:
    """A return of a run to an earlier step."""

    time: float
    """Time of the return, in seconds since 1970."""
    to: int
    """Step that the run continued from."""
    newest: int
    """Newest step that had a checkpoint before the return."""
    mark: str
    """Ending of the names of the checkpoints that were moved aside."""


def times_back(directory: Path) -> list[Back]:
    """Return each time that a run went back to an earlier step, in order."""
    path, found = directory / WENT_BACK, []
    if path.is_file():
        for line in read_file(path).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = parse_object(line)
                back = Back(float(told["time"]), int(told["to"]), int(told["newest"]), str(told["mark"]))
                found.append(back)
    return found
