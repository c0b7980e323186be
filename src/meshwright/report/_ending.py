"""How a run ended, or whether it goes on, as its files tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.checkpoint import is_held

_STILL_NEW = 600.0
"""Seconds after which a run that nothing else tells of is taken for dead when it reports no more."""


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    `finished`, `stopped` (told to, with the state saved), `diverged`, `failed`, `killed` (without a word),
    `running`, or `unknown`.
    """

    state: str
    message: str = ""
    """What it said at the end, if anything."""


def ending_of(
    outcome: Mapping[str, Any] | None, checkpoints: str | None, silent_seconds: float | None
) -> Ending:
    """Return how a run ended.

    Args:
      outcome: what `outcome.json` says; None where there is none.
      checkpoints: where they are, a directory or an address; None where that is not known.
      silent_seconds: how long ago the last report was; None if there is none.
    """
    if outcome is not None:
        return Ending(str(outcome.get("ended", "finished")), str(outcome.get("message", "")))
    if checkpoints is None:
        return Ending("unknown")
    if "://" in checkpoints:  # object stores have no locks
        goes_on = silent_seconds is not None and silent_seconds < _STILL_NEW
    else:
        goes_on = is_held(Path(checkpoints))
    return Ending("running" if goes_on else "killed")
