"""The records of a run: its state, warnings in logs, returns to earlier steps, loss spikes, samples."""

import contextlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented, parse_object, read_file
from meshwright.checkpoints._internal import is_locked

_STILL_NEW = 600.0
"""Time without a report, in seconds, after which a run is taken for dead, without other signs of its state.
"""
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
    # Object stores have no locks.
    if "://" in checkpoints:
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
    incidents = itertools.chain.from_iterable(map(_incidents, sorted(directory.glob("*.log"))))
    return sorted(incidents, key=lambda incident: incident.time)


def _incidents(file: Path) -> list[Incident]:
    text = read_file(file).decode(errors="replace")
    heads = list(_ENTRY.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    # The lines after a head, such as a traceback, belong to its entry.
    entries = [(head, text[head.end() : end].rstrip()) for head, end in zip(heads, ends, strict=True)]
    return [
        Incident(head[1], file.stem, head[2], message.partition("\n")[0], message.partition("\n")[2])
        for head, message in entries
        if head[2] in _LEVELS
    ]


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
    path, backs = directory / WENT_BACK, []
    if path.is_file():
        for line in read_file(path).splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                fields = parse_object(line)
                back = Back(
                    float(fields["time"]), int(fields["to"]), int(fields["newest"]), str(fields["mark"])
                )
                backs.append(back)
    return backs


SPIKES = "spikes.jsonl"
"""The record's file, in the run directory."""


@documented
@dataclass(frozen=True)
class Spike:
    """A loss spike, and the batches that were left out because of it."""

    step: int
    """The step of the spike."""
    metric: str
    """The metric that was a spike."""
    value: float
    """Its value."""
    median: float
    """The median of the values before."""
    continued_after: int
    """The step that the run went back to."""
    batches: tuple[int, int]
    """The first and the last batch that were left out, counted from 1 over the run."""
    positions: tuple[int, int] | None
    """The position of their first example in the order of the run, counted from 0, and the one after their
    last; None if the examples have no such order."""
    examples: Sequence[int]
    """The numbers of their examples, if these have numbers."""


def spikes_in(path: Path) -> list[Spike]:
    """Return the spikes in a file, in the order of the decisions."""
    return [_spike(parse_object(line)) for line in read_file(path).splitlines()]


def _spike(fields: Mapping[str, Any]) -> Spike:
    try:
        first, last = fields["batches"]
        positions = fields.get("positions")
        return Spike(
            step=int(fields["step"]),
            metric=str(fields["metric"]),
            value=float(fields["value"]),
            median=float(fields["median"]),
            continued_after=int(fields["continued_after"]),
            batches=(int(first), int(last)),
            positions=None if positions is None else (int(positions[0]), int(positions[1])),
            examples=[int(number) for number in fields.get("examples", ())],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a decision about a spike: {error!r}") from None


_MOST_ROWS, _MOST_CHARACTERS = 20, 4000
_MOST_BYTES = 1 << 20
"""The most bytes of a picture; the page contains the pictures."""


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
    # At most 20: the page contains the samples.
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
