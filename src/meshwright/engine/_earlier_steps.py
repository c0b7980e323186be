"""Going back: a run that continues from an earlier step than its newest checkpoint.

attempts/went_back.jsonl           a line each time: {"time": …, "to": 400, "newest": 900, "mark": "1f2e3d4c"}
attempts/metrics-1f2e3d4c.jsonl    a copy of all reports; later ones are then removed from metrics.jsonl
checkpoints/step_….later-1f2e3d4c  the later checkpoints, renamed; in a store, their manifests

A run that is killed meanwhile loses nothing: first the reports are copied and the line is written; then the
later checkpoints are renamed, the newest first.
"""

import json
import numbers
import secrets
import time
from pathlib import Path

from meshwright.base._internal import Directory, description, parse_object, read_file, write_whole
from meshwright.checkpoints._internal import complete_steps, set_aside_after
from meshwright.engine._open_run import OpenRun
from meshwright.engine._run_files import secrets_in, without_secrets
from meshwright.engine._settings import Settings
from meshwright.errors import UsageError, listed
from meshwright.processes import _internal as processes
from meshwright.report._internal import WENT_BACK, times_back

_MOST_NAMED = 20


def step_to_go_back_to(settings: Settings, opened: OpenRun) -> int | None:
    """Return the step to which the run goes back, or None if it does not. Collective.

    If the run went back and was then interrupted, the same command continues it and does not go back again.
    """
    step, checkpoints, directory = settings.from_step, opened.checkpoints, opened.directory
    if step is None:
        return None
    if not isinstance(step, numbers.Integral):
        raise UsageError(f"from_step={step!r}: expected the number of a step, found {type(step).__name__}.")
    if checkpoints is None or directory is None:
        raise UsageError(
            f"from_step={step}: this training saves no checkpoints, so it cannot go back to one. Leave out "
            "from_step, or give the run a directory and settings to save."
        )
    steps = processes.on_lead(lambda: complete_steps(checkpoints.directory))
    newest = max(steps, default=-1)
    if newest >= step and processes.on_lead(lambda: _went_back(settings, directory, step)):
        opened.say(
            f"  the run went back to step {step} before and was interrupted: it continues after step {newest}"
        )
        return None
    if step not in steps:
        existing = listed(map(str, steps), _MOST_NAMED) or "none"
        raise UsageError(
            f"from_step={step}: there is no checkpoint of that step.\n  There are checkpoints of: {existing}."
        )
    return step


def go_back(step: int, opened: OpenRun) -> None:
    """Set aside all checkpoints that are later than `step`, and tell the user. Collective."""
    checkpoints, directory = opened.checkpoints, opened.directory
    assert checkpoints is not None
    assert directory is not None
    if checkpoints.host_memory:  # first: a run that is killed now must not continue from memory
        checkpoints.host_memory.invalidate()
    later = processes.on_lead(lambda: _go_back(step, directory, checkpoints.directory))
    steps = listed(map(str, later), _MOST_NAMED)
    result = f"later checkpoints are set aside, of step {steps}" if later else "there is no later checkpoint"
    opened.say(f"  ↺ going back to step {step}: {result}")


def _go_back(step: int, directory: Path, checkpoints: Directory) -> list[int]:
    mark, newest = secrets.token_hex(4), max(complete_steps(checkpoints))
    metrics, path = directory / "metrics.jsonl", directory / WENT_BACK
    path.parent.mkdir(exist_ok=True)
    if metrics.exists():
        write_whole(path.with_name(f"metrics-{mark}.jsonl"), read_file(metrics))
    entry = {"time": round(time.time(), 3), "to": step, "newest": newest, "mark": mark}
    lines = read_file(path) if path.exists() else b""
    write_whole(path, lines + json.dumps(entry).encode() + b"\n")
    return set_aside_after(checkpoints, step, mark)


def _went_back(settings: Settings, directory: Path, step: int) -> bool:
    """Return whether the attempt before went back to this step, with these settings, and was interrupted."""
    entries, outcome = times_back(directory), directory / "outcome.json"
    if not entries or entries[-1].to != step or changes(settings, directory):
        return False
    ended = parse_object(read_file(outcome)).get("ended") if outcome.exists() else None
    return ended not in ("finished", "diverged")


_MOST_SHOWN = 20


def changes(settings: Settings, directory: Path) -> list[str]:
    """Return a line for each setting that differs from the attempt before. Not collective."""
    file = directory / "experiment.txt"
    if not file.is_file():
        return []
    described = without_secrets(settings.described(), secrets_in(settings.origin))
    return [
        str(difference)
        for difference in description.differences(read_file(file).decode(errors="replace"), described)
    ]


def show_changes(settings: Settings, opened: OpenRun) -> None:
    """Show the user which settings differ from those of the attempt before. Collective."""
    directory = opened.directory
    if directory is None:
        return
    differences = processes.on_lead(lambda: changes(settings, directory))
    if not differences:
        return
    more = f"\n    and {len(differences) - _MOST_SHOWN} more" if len(differences) > _MOST_SHOWN else ""
    lines = "".join(f"\n    {difference}" for difference in differences[:_MOST_SHOWN]) + more
    if settings.is_strict:
        raise UsageError(
            f"{settings.place} was trained with different settings so far:{lines}\n"
            "  Give the same settings or another run directory, or leave out `strict` to continue with the "
            "new settings."
        )
    opened.say(f"  ! the settings differ from those of the training so far:{lines}")
