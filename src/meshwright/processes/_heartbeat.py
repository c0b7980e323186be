"""The heartbeat of a process: its phase, step and line of source, in one file of JSON.

Each process overwrites its own file in place, `process-00003.json`. Readers compare two readings by their own
clock, so that clocks of several machines need not agree.
"""

import contextlib
import dataclasses
import glob
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshwright.base._internal import check_owned, documented, is_address, local_path, parse_object, read_file
from meshwright.errors import printable
from meshwright.processes._proc import birth_of, process_identity, state_of

_NBYTES = 4096
"""The size of a file. Writes of equal size in place cost a shared file system less than new files do."""
_MOST_CHARACTERS = 160
_MOST_PROCESSES = 2**20
_MOST_READINGS = 40
_LONGEST_BEAT_SECONDS = 10.0


@documented
@dataclass(frozen=True)
class Entry:
    """The phase, step and line of source of a process."""

    process: int
    """The number of the process in the run."""
    num_processes: int
    """The number of all processes of the run."""
    host: str
    """The name of its machine."""
    pid: int
    """Its number on that machine."""
    born: str
    """The start time of the process, in ticks of its machine: the system uses numbers again."""
    namespace: str
    """The namespace of its number: on the same machine, containers have different ones."""
    phase: str
    """The phase of the process, one of `mw.training.PHASES`."""
    step: int | None
    """The last step that it finished launching; None before the first."""
    turns: int
    """The number of steps and phases so far, which grows while the process makes progress."""
    beat: int
    """The number of writes so far, which grows while the process can run Python."""
    still_seconds: float
    """The seconds since `turns` has grown, by the clock of the process."""
    limit_seconds: float | None
    """The longest usual time of this phase; None as long as it is not known."""
    beat_seconds: float
    """The time between two writes."""
    is_waiting: bool
    """True if the main thread is in JAX or waits for the other processes."""
    where: str
    """The line of source of the main thread."""
    others: Sequence[str]
    """Lines of the user's code of other threads, such as those that read examples."""
    readings: Mapping[str, float] = field(default_factory=dict)
    """Readings of the machine and devices, and the seconds of the steps, by name."""


def board_directory(run: str) -> Path:
    """Return the folder of a run's heartbeats, for a run in a store a temporary one of this machine."""
    if not is_address(run):
        return local_path(run) / "board"
    name = hashlib.sha256(run.rstrip("/").encode()).hexdigest()[:16]
    return check_owned(Path(tempfile.gettempdir(), f"meshwright-board-{os.getuid()}-{name}"))


def write_entry(directory: Path, entry: Entry) -> None:
    """Write the entry of a process in place."""
    record = dataclasses.asdict(entry)
    record["where"], record["others"] = _cut(entry.where), [_cut(line) for line in entry.others][:2]
    content = json.dumps(record).encode().ljust(_NBYTES - 1) + b"\n"
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
    entries: dict[int, Entry] = {}
    # `glob.glob` finds nothing where the last process removes the folder meanwhile.
    for name in sorted(glob.glob("process-*.json", root_dir=directory)):  # noqa: PTH207
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, OverflowError, AttributeError):
            entry = _entry_in(parse_object(read_file(directory / name)))
            entries[entry.process] = entry
    first = next(iter(entries.values()), None)
    return {number: entry for number, entry in entries.items() if first and number < first.num_processes}


def _entry_in(record: Mapping[str, Any]) -> Entry:
    """Return the entry in a document, which other users may have written: nothing in it is trusted."""
    process, num_processes = int(record["process"]), int(record["num_processes"])
    if not 0 <= process < num_processes <= _MOST_PROCESSES:
        raise ValueError(f"there is no process {process} of {num_processes}")
    readings = {_text(name): float(x) for name, x in list(record["readings"].items())[:_MOST_READINGS]}
    return Entry(
        process=process,
        num_processes=num_processes,
        host=_text(record["host"]),
        pid=int(record["pid"]),
        born=_text(record["born"]),
        namespace=_text(record["namespace"]),
        phase=_text(record["phase"]),
        where=_text(record["where"]),
        step=None if record["step"] is None else int(record["step"]),
        turns=int(record["turns"]),
        beat=int(record["beat"]),
        still_seconds=_seconds(record["still_seconds"]),
        limit_seconds=None if record["limit_seconds"] is None else _seconds(record["limit_seconds"]),
        beat_seconds=min(_seconds(record["beat_seconds"]), _LONGEST_BEAT_SECONDS),
        is_waiting=bool(record["is_waiting"]),
        others=[_text(line) for line in list(record["others"])[:2]],
        readings={name: x for name, x in readings.items() if math.isfinite(x)},
    )


def _text(value: Any) -> str:
    return _cut(printable(str(value), keep=""))


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value} is no time")
    return seconds


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"…{text[1 - _MOST_CHARACTERS :]}"


ENDED, NOT_IN_RUN, STOPPED, UNRESPONSIVE = "gone", "has left", "stopped by a signal", "does not answer"
STANDS, WAITS, WORKS = "stands", "waits", "works"
_BEATS = 3
"""The time between two looks, in beats."""
_UNRESPONSIVE_SECONDS = 3.0
"""A process that has not written for this long, after two looks, cannot: on a machine with much to do, a
process may get no time for a second or two."""


@documented
@dataclass(frozen=True)
class ProcessStatus:
    """The state of a process, as a reader of its heartbeats sees it."""

    process: int
    """The number of the process."""
    state: str
    """The state: `gone`, `has left`, `stopped by a signal`, `does not answer`, `stands` (in code that waits
    for no other process), `waits`, or `works`."""
    entry: Entry | None
    """The last entry of the process; None if it has none."""


def look(directory: Path) -> list[ProcessStatus]:
    """Return the state of each process of a run.

    The entries are read twice, some seconds apart, and again while a process does not seem to answer.
    """
    earlier = read_entries(directory)
    if not earlier:
        return []
    beat = max(entry.beat_seconds for entry in earlier.values())
    time.sleep(_BEATS * beat)
    observed, over = compared(earlier, read_entries(directory)), time.monotonic() + _UNRESPONSIVE_SECONDS
    while any(process.state == UNRESPONSIVE for process in observed) and time.monotonic() < over:
        time.sleep(beat)
        observed = compared(earlier, read_entries(directory))
    return observed


def compared(earlier: Mapping[int, Entry], later: Mapping[int, Entry]) -> list[ProcessStatus]:
    """Return the state of each process, from two readings of the entries."""
    entries = {**earlier, **later}
    total = next(iter(entries.values())).num_processes
    return [_observed(number, earlier.get(number), later.get(number)) for number in range(total)]


def _observed(number: int, earlier: Entry | None, later: Entry | None) -> ProcessStatus:
    if later is None:
        return ProcessStatus(number, NOT_IN_RUN, None)
    state = _state_on_this_machine(later)
    if state is None:
        is_mute = earlier is not None and earlier.beat == later.beat
        has_moved = earlier is None or earlier.turns != later.turns
        state = UNRESPONSIVE if is_mute else WORKS if has_moved else WAITS if later.is_waiting else STANDS
    return ProcessStatus(number, state, later)


def _state_on_this_machine(entry: Entry) -> str | None:
    """Return the state of a process by Linux; None if it runs, or is on another machine."""
    host, _, _, namespace = process_identity()
    if not entry.born or (host, namespace) != (entry.host, entry.namespace):
        return None
    if birth_of(entry.pid) != entry.born or state_of(entry.pid) in ("Z", "X"):
        return ENDED
    return STOPPED if state_of(entry.pid) in ("T", "t") else None


class StallMonitor:
    """Notices that a process of a run makes no progress, by the clock of the reader."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[tuple[int, str], float]] = {}
        self._reported: dict[int, tuple[int, str]] = {}

    def late(self, entries: Mapping[int, Entry], time_now: float) -> Mapping[int, Entry]:
        """Return the processes without progress for longer than is usual, each only once in a hang."""
        late = {}
        for number, entry in entries.items():
            turn = (entry.turns, entry.born)
            if self._since.get(number, (None, 0.0))[0] != turn:
                self._since[number] = turn, time_now
            limit, stood = entry.limit_seconds, time_now - self._since[number][1]
            if limit is None or stood <= limit or self._reported.get(number) == turn:
                continue
            # An entry of a process that has ended is of an earlier attempt.
            if _state_on_this_machine(entry) != ENDED:
                late[number] = entry
        if late:
            self._reported = {number: (entry.turns, entry.born) for number, entry in entries.items()}
        return late
