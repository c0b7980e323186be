"""Short texts about a run, which are the same on its page and in a terminal."""

import ast
from collections.abc import Collection
from typing import Any

from meshwright.base._internal import duration, mesh_words, number, utc_time
from meshwright.report._history import Best
from meshwright.report._run import Run

CHOSEN = "★"
"""The mark of a score that the user chose as best."""
CHOSEN_LEGEND = "score that checkpoints are kept by, or that ends a run"


def score_title(name: str, chosen: Collection[str]) -> str:
    """Return a score's name, marked if the user chose it as best: `★ test/loss`."""
    return f"{CHOSEN} {name}" if name in chosen else name


def steps_of(run: Run) -> str:
    """Return the steps done: `600 of 900 steps`."""
    return f"{run.step:,}{'' if run.max_steps is None else f' of {run.max_steps:,}'} steps"


def facts_of(run: Run) -> list[str]:
    """Return the run's steps, time, start, devices, mesh and versions, as far as they are known."""
    environment, mesh = run.environment, run.environment.get("mesh")
    started = run.attempts[0].started if run.attempts else None
    facts = [
        f"{steps_of(run)} in {duration(run.seconds)}",
        None if started is None else date(started),
        _devices(environment.get("devices"), environment.get("processes")),
        f"mesh {mesh_words(mesh)}" if isinstance(mesh, dict) else "",
        _versions(environment.get("packages")),
    ]
    return [fact for fact in facts if fact]


def date(seconds: float) -> str:
    """Return a time, in seconds since 1970, as `2026-11-21T03:57:12Z`."""
    try:
        return utc_time(seconds)
    except (ValueError, OverflowError, OSError):
        # A damaged file may contain any number.
        return "at an unknown time"


def best_text(best: Best) -> str:
    """Return `0.9833 at step 900`."""
    return f"{number(best.value)} at step {best.step}"


def flat(value: Any) -> str:
    """Return a value of a JSON file as one line of text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def plain(value: str | None) -> str | None:
    """Return the value of a description as a user would type it: a text without its quotes."""
    try:
        text = ast.literal_eval(value) if value and value[0] in "'\"" else None
    except (SyntaxError, ValueError):
        return value
    return text if isinstance(text, str) else value


def or_dash(value: str | None) -> str:
    """Return a text to show; `–` for None."""
    return "–" if value is None else value


def _devices(devices: Any, processes: Any) -> str:
    if not isinstance(devices, dict):
        return ""
    where = f" in {processes} processes" if isinstance(processes, int) and processes > 1 else ""
    return f"{devices.get('count')} × {devices.get('kind')}{where}"


def _versions(versions: Any) -> str:
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{name} {versions[name]}" for name in ("meshwright", "jax") if name in versions)
