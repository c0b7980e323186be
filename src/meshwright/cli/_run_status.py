"""`meshwright doctor RUN`: where each process of a run stands, asked from another terminal or machine."""

import dataclasses
from pathlib import Path

from meshwright.base._internal import is_address, screen_width
from meshwright.cli._train import Result
from meshwright.errors import EXIT_DONE, EXIT_HUNG, InputError, UsageError
from meshwright.processes._internal import ProcessStatus, board_directory, look, slow_processes, verdict

_ALWAYS = ("gone", "stopped by a signal", "does not answer")
"""The states of processes that do not go on, whatever is usual."""


def ask(place: str) -> Result:
    """Show what each process of a run does, and what follows. Takes a few seconds; exit code 5 if the run
    hangs.
    """
    if "=" in place and not is_address(place) and not Path(place).exists():
        raise UsageError(
            f"meshwright doctor takes no settings, and {place!r} is one. It takes the directory of a run."
        )
    directory = board_directory(place)
    seen = look(directory)
    if not seen:
        raise InputError(
            f"no process of {place} tells where it stands: there are no files in {directory}.\n  Either the "
            "run does not go on, or it has no watchdog, or it is in a store and runs elsewhere: ask there."
        )
    hangs = any(map(_hangs, seen))
    processes = [dataclasses.asdict(each) for each in seen]
    slow = slow_processes([{each.process: each.entry.readings for each in seen if each.entry is not None}])
    told = [f"At the last reading, {each}." for each in slow]
    text = "\n".join([verdict(seen, width=screen_width()), *told])
    document = {"processes": processes, "hangs": hangs, "slow": [dataclasses.asdict(each) for each in slow]}
    return text, document, EXIT_HUNG if hangs else EXIT_DONE


def _hangs(seen: ProcessStatus) -> bool:
    entry = seen.entry
    if seen.state in _ALWAYS:
        return True
    return entry is not None and entry.limit_seconds is not None and entry.still_seconds > entry.limit_seconds
