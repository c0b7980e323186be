"""The loss spikes of a run that went back before them, from `spikes.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented, parse_object, read_file

SPIKES = "spikes.jsonl"
"""The record's file, in the run directory."""


@documented
@dataclass(frozen=True)
class SpikeSeen:
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


def spikes_in(path: Path) -> list[SpikeSeen]:
    """Return the spikes in a file, in the order of the decisions."""
    return [_spike(parse_object(line)) for line in read_file(path).splitlines()]


def _spike(told: Mapping[str, Any]) -> SpikeSeen:
    try:
        first, last = told["batches"]
        positions = told.get("positions")
        return SpikeSeen(
            step=int(told["step"]),
            metric=str(told["metric"]),
            value=float(told["value"]),
            median=float(told["median"]),
            continued_after=int(told["continued_after"]),
            batches=(int(first), int(last)),
            positions=None if positions is None else (int(positions[0]), int(positions[1])),
            examples=[int(number) for number in told.get("examples", ())],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a decision about a spike: {error!r}") from None
