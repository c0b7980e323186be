"""What a process tells on the board: one file of JSON, `process-00003.json`, which is overwritten in
place.
"""

import contextlib
import dataclasses
import glob
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.base._internal import check_owned, documented, is_address, local_path, parse_object, read_file
from meshwright.errors import printable

_NBYTES = 4096
"""The size of a file. Writes of equal size in place cost a shared file system less than new files do."""
_MOST_CHARACTERS = 160
_MOST_PROCESSES = 2**20
_MOST_READINGS = 40
_LONGEST_BEAT_SECONDS = 10.0


@documented
@dataclass(frozen=True)
class Entry:
    """Where a process stands."""

    process: int
    """The number of the process in the run."""
    num_processes: int
    """The number of all processes of the run."""
    host: str
    """The name of its machine."""
    pid: int
    """Its number on that machine."""
    born: str
    """When it was born, in ticks of its machine; another process of the same number was born at another
    time."""
    namespace: str
    """The namespace of its number: on the same machine, containers have different ones."""
    phase: str
    """The phase that it is in, one of `mw.training.PHASES`."""
    step: int | None
    """The last step that it finished launching; None before the first."""
    turns: int
    """The number of steps and phases so far. It grows while the process gets on."""
    beat: int
    """The number of times that this was written. It grows while the process can run Python."""
    still_seconds: float
    """The time since `turns` has grown, in seconds of its own."""
    limit_seconds: float | None
    """The longest time in this phase that the run takes for usual; None if it does not know yet."""
    beat_seconds: float
    """The time between two writes."""
    is_waiting: bool
    """True if the main thread is in JAX or waits for the other processes."""
    where: str
    """The line of source where the main thread stands."""
    others: Sequence[str]
    """Lines of the user's code where other threads stand, such as those that read examples."""
    readings: Mapping[str, float] = field(default_factory=dict)
    """What its machine and devices tell, and the seconds of its steps, by name."""


def board_directory(place: str) -> Path:
    """Return the folder of a run's board: in its directory or, for a run in a store, a temporary one of this
    machine.
    """
    if not is_address(place):
        return local_path(place) / "board"
    name = hashlib.sha256(place.rstrip("/").encode()).hexdigest()[:16]
    return check_owned(Path(tempfile.gettempdir(), f"meshwright-board-{os.getuid()}-{name}"))


def write_entry(directory: Path, entry: Entry) -> None:
    """Write what a process tells, in place."""
    told = dataclasses.asdict(entry)
    told["where"], told["others"] = _cut(entry.where), [_cut(each) for each in entry.others][:2]
    content = json.dumps(told).encode().ljust(_NBYTES - 1) + b"\n"
    descriptor = os.open(path_of(directory, entry.process), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def path_of(directory: Path, process: int) -> Path:
    """Return the file of a process."""
    return directory / f"process-{process:05}.json"


def read_entries(directory: Path) -> dict[int, Entry]:
    """Return the entries of all processes, by number.

    Those that cannot be read, or are of an earlier attempt with more processes, are left out.
    """
    found: dict[int, Entry] = {}
    # `glob.glob` finds nothing where the last process removes the folder meanwhile.
    for name in sorted(glob.glob("process-*.json", root_dir=directory)):  # noqa: PTH207
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
            entry = _entry_in(parse_object(read_file(directory / name)))
            found[entry.process] = entry
    first = next(iter(found.values()), None)
    return {number: entry for number, entry in found.items() if first and number < first.num_processes}


def _entry_in(told: Mapping[str, Any]) -> Entry:
    """Return the entry in a document, which anybody may have written."""
    process, num_processes = int(told["process"]), int(told["num_processes"])
    if not 0 <= process < num_processes <= _MOST_PROCESSES:
        raise ValueError(f"there is no process {process} of {num_processes}")
    return Entry(
        process=process,
        num_processes=num_processes,
        host=_text(told["host"]),
        pid=int(told["pid"]),
        born=_text(told["born"]),
        namespace=_text(told["namespace"]),
        phase=_text(told["phase"]),
        where=_text(told["where"]),
        step=None if told["step"] is None else int(told["step"]),
        turns=int(told["turns"]),
        beat=int(told["beat"]),
        still_seconds=_seconds(told["still_seconds"]),
        limit_seconds=None if told["limit_seconds"] is None else _seconds(told["limit_seconds"]),
        beat_seconds=min(_seconds(told["beat_seconds"]), _LONGEST_BEAT_SECONDS),
        is_waiting=bool(told["is_waiting"]),
        others=[_text(each) for each in list(told["others"])[:2]],
        readings=_readings(told["readings"]),
    )


def _readings(told: Mapping[str, Any]) -> dict[str, float]:
    found = {_text(name): float(value) for name, value in list(told.items())[:_MOST_READINGS]}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _text(value: Any) -> str:
    return _cut(printable(str(value), keep=""))


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value} is no time")
    return seconds


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"…{text[1 - _MOST_CHARACTERS :]}"
