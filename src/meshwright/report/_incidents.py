"""What went wrong in a run, as the logs of its processes tell."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from meshwright.documents import read_file

_ENTRY = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d) ([A-Z]+) ", re.MULTILINE)
_LEVELS = ("WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class Incident:
    """A warning or an error that a process logged."""

    time: str
    process: str
    """The name of its log, without the ending."""
    level: str
    message: str
    details: str
    """The lines that follow, a traceback above all."""


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
