"""Going back: a run that goes on from an earlier step than its newest checkpoint.

attempts/went_back.jsonl           each time a line, {"time": …, "to": 400, "newest": 900, "mark": "1f2e3d4c"}
attempts/metrics-1f2e3d4c.jsonl    the reports as they were before, of which the later ones are cut off
checkpoints/step_….later-1f2e3d4c  the checkpoints that were later; in a store, their manifests

Wherever a run is killed at it, nothing is lost: the reports are copied and the line is written first. Then
each later checkpoint is renamed, the latest first.
"""

import json
import numbers
import secrets
import time
from pathlib import Path

from meshwright import process
from meshwright.checkpoint import complete_steps, set_aside_after
from meshwright.documents import parse_object, read_file
from meshwright.durable import write_whole
from meshwright.engine._changes import changes
from meshwright.engine._open_run import OpenRun
from meshwright.engine._settings import Settings
from meshwright.errors import UsageError, listed
from meshwright.report import WENT_BACK, times_back
from meshwright.storage import Directory

_MOST_NAMED = 20


def step_to_go_back_to(settings: Settings, opened: OpenRun) -> int | None:
    """Return the step that the run goes back to, if it does. Collective.

    The same command, given again to a run that was cut off, goes on and does not go back once more.

    Raises:
      UsageError: there is no checkpoint of that step.
    """
    step, checkpoints, directory = settings.from_step, opened.checkpoints, opened.directory
    if step is None:
        return None
    if not isinstance(step, numbers.Integral):
        raise UsageError(f"from_step={step!r}: expected the number of a step, found {type(step).__name__}.")
    if checkpoints is None or directory is None:
        raise UsageError(f"from_step={step}: nothing of this training is saved, so there is no way back.")
    steps = process.on_lead(lambda: complete_steps(checkpoints.directory))
    newest = max(steps, default=-1)
    if newest >= step and process.on_lead(lambda: _has_gone(settings, directory, step)):
        opened.say(f"  it went back to step {step} before, and was cut off: it goes on after step {newest}")
        return None
    if step not in steps:
        there = listed(map(str, steps), _MOST_NAMED) or "none"
        raise UsageError(f"from_step={step}: there is no checkpoint of that step.\n  There are: {there}.")
    return step


def go_back(step: int, opened: OpenRun) -> None:
    """Set aside all checkpoints later than `step`, of which there is one, and tell it. Collective."""
    checkpoints, directory = opened.checkpoints, opened.directory
    assert checkpoints is not None
    assert directory is not None
    later = process.on_lead(lambda: _go_back(step, directory, checkpoints.directory))
    steps = listed(map(str, later), _MOST_NAMED)
    told = f"later checkpoints are set aside, of step {steps}" if later else "there is no later checkpoint"
    opened.say(f"  ↺ going back to step {step}: {told}")


def _go_back(step: int, directory: Path, checkpoints: Directory) -> list[int]:
    mark, newest = secrets.token_hex(4), max(complete_steps(checkpoints))
    metrics, path = directory / "metrics.jsonl", directory / WENT_BACK
    path.parent.mkdir(exist_ok=True)
    if metrics.exists():
        write_whole(path.with_name(f"metrics-{mark}.jsonl"), read_file(metrics))
    told = {"time": round(time.time(), 3), "to": step, "newest": newest, "mark": mark}
    before = read_file(path) if path.exists() else b""
    write_whole(path, before + json.dumps(told).encode() + b"\n")
    return set_aside_after(checkpoints, step, mark)


def _has_gone(settings: Settings, directory: Path, step: int) -> bool:
    """Return whether the attempt before went back to this step, with these settings, and was cut off."""
    before, outcome = times_back(directory), directory / "outcome.json"
    if not before or before[-1].to != step or changes(settings, directory):
        return False
    ended = parse_object(read_file(outcome)).get("ended") if outcome.exists() else None
    return ended not in ("finished", "diverged")
