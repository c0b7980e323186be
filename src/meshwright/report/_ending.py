"""The state of a run, and the warnings and errors in its logs."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented, read_file
from meshwright.checkpoints._internal import is_locked

_STILL_NEW = 600.0
"""Time without a report, in seconds, after which a run is taken for dead if nothing else tells its state."""
_ENTRY = re.compile(r"^(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:,\d+)? ([A-Z]+) ", re.MULTILINE)
_LEVELS = ("WARNING", "ERROR", "CRITICAL")


@documented
@dataclass(frozen=True)
class Ending:
    """The state of a run, and its last message."""

    state: str
    """`finished`, `stopped` (on request, with the state saved), `diverged`, `failed`, `killed` (without any
    message), `running` or `unknown`."""
    message: str = ""
    """The run's last message, or ""."""


def ending_of(
    outcome: Mapping[str, Any] | None, checkpoints: str | None, silent_seconds: float | None
) -> Ending:
    """Return the state of a run."""
    if outcome is not None:
        return Ending(str(outcome.get("ended", "finished")), str(outcome.get("message", "")))
    if checkpoints is None:
        return Ending("unknown")
    if "://" in checkpoints:  # object stores have no locks
        goes_on = silent_seconds is not None and silent_seconds < _STILL_NEW
    else:
        goes_on = is_locked(Path(checkpoints))
    return Ending("running" if goes_on else "killed")


@documented
@dataclass(frozen=True)
class Incident:
    """A warning or an error that a process logged."""

    time: str
    process: str
    """Name of the process's log, without the suffix."""
    level: str
    message: str
    details: str
    """The lines that follow the message, such as a traceback."""


def incidents_of(directory: Path) -> list[Incident]:
    """Return the warnings and errors in the logs below `directory`, in the order of their times."""
    found = itertools.chain.from_iterable(map(_incidents, sorted(directory.glob("*.log"))))
    return sorted(found, key=lambda incident: incident.time)


def _incidents(file: Path) -> list[Incident]:
    text = read_file(file).decode(errors="replace")
    heads = list(_ENTRY.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    entries = [(head, text[head.end() : end].rstrip()) for head, end in zip(heads, ends, strict=True)]
    return [
        Incident(head[1], file.stem, head[2], said.partition("\n")[0], said.partition("\n")[2])
        for head, said in entries
        if head[2] in _LEVELS
    ]
