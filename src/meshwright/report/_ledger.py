"""The ledger of a run: the use of every second of its life, over all attempts.

A run's life goes from its first start to its last sign of life. Each second of it belongs to one of `PARTS`.
`ledger.json` in the run directory has the sums; the run writes it every few seconds, and the next attempt
reads it. So a killed attempt leaves only a few seconds unrecorded, which count as waiting.

    {"seconds": {"start": 8.1, "step": 340.2, …}, "until": 1790000000.0, "ended": null, "attempts": 2,
     "failures": 1, "saves": 12, "marks": {"400": {"step": 220.7, …}}}

This module reads no clock: a ledger is a value, and each event of a run makes a new one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented, number, parse_object, read_file

LEDGER = "ledger.json"
"""The file's name in the run directory."""
PARTS = {
    "step": "updates that count",
    "start": "starting and restoring",
    "compile": "compiling and checking before the first step",
    "input": "waiting for batches",
    "evaluation": "evaluations",
    "report": "writing reports, with the trackers",
    "save": "saves, as far as the loop waits for them",
    "stall": "steps that took far longer than usual",
    "lost": "work that a later attempt did again",
    "waiting": "waiting for machines, between attempts",
    "other": "closing, and the program's own work between trainings",
}
"""The uses of the seconds of a run's life, each with its meaning."""
WORK = ("step", "input", "evaluation", "report")
"""The parts that are done again after a failure, and are then lost work."""
_MOST_MARKS = 100
_MOST_SECONDS = 1e11


@documented
@dataclass(frozen=True)
class Ledger:
    """The seconds of a run by their use, over all attempts.

    Example:
      >>> ledger = mw.report._internal.Ledger({"step": 90.0, "save": 10.0}, until=100.0, attempts=1, saves=5)
      >>> ledger.goodput, ledger.save_seconds
      (0.9, 2.0)
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each part of `PARTS`."""
    until: float = 0.0
    """The last sign of life, in seconds since 1970."""
    ended: str | None = None
    """The end of the newest attempt: `finished`, `stopped`, `diverged` or `failed`; None if it goes on or was
    killed."""
    attempts: int = 0
    """The number of attempts."""
    failures: int = 0
    """The number of attempts that were killed or failed, and after which the run was continued."""
    saves: int = 0
    """The number of saves."""
    marks: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By step of a save, the seconds of each part of `WORK` until then."""

    @property
    def total(self) -> float:
        """The seconds of the run's life."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """The share of the run's life that was spent on updates that count, from 0 to 1; None without any
        time.
        """
        return self.seconds.get("step", 0.0) / self.total if self.total > 0 else None

    @property
    def seconds_between_failures(self) -> float | None:
        """The mean time that an attempt works before it fails; None before the second failure."""
        return (self.total - self.seconds.get("waiting", 0.0)) / self.failures if self.failures > 1 else None

    @property
    def save_seconds(self) -> float | None:
        """The mean time that a save holds the loop up; None without a save."""
        return self.seconds.get("save", 0.0) / self.saves if self.saves else None

    @property
    def best_save_seconds(self) -> float | None:
        """The time between saves that loses the least, in seconds of work; None before the second failure, or
        without a save that took any time.

        It is sqrt(2 · cost of a save · mean time between failures): J. W. Young, "A first order approximation
        to the optimum checkpoint interval", CACM 17 (1974), and J. T. Daly, FGCS 22 (2006).
        """
        cost, between = self.save_seconds, self.seconds_between_failures
        return math.sqrt(2 * cost * between) if cost and between else None

    @property
    def seconds_between_saves(self) -> float | None:
        """The mean time of work between two saves, with the work that was lost; None without a save."""
        worked = sum(self.seconds.get(part, 0.0) for part in (*WORK, "lost"))
        return worked / self.saves if self.saves else None

    def begun(self, started: float) -> "Ledger":
        """Return the ledger when another attempt has started."""
        if self.attempts == 0:
            return replace(self, until=started, attempts=1)
        waited = 0.0 if self.ended == "finished" else max(0.0, started - self.until)
        # An attempt without an end was killed.
        failures = self.failures + int(self.ended in (None, "failed"))
        spent = self.added({"waiting": waited}, started)
        return replace(spent, ended=None, attempts=self.attempts + 1, failures=failures)

    def added(self, seconds: Mapping[str, float], until: float) -> "Ledger":
        """Return the ledger with more seconds of some parts, and the time of the last sign of life."""
        parts = (part for part in PARTS if part in self.seconds or part in seconds)
        sums = {part: self.seconds.get(part, 0.0) + seconds.get(part, 0.0) for part in parts}
        return replace(self, seconds=sums, until=until)

    def saved(self, step: int) -> "Ledger":
        """Return the ledger after a save of the state after `step`."""
        work = {part: self.seconds.get(part, 0.0) for part in WORK}
        # The file stays small, however long the run is.
        newest = sorted({*self.marks, step})[-_MOST_MARKS:]
        marks = {marked_step: self.marks.get(marked_step, work) for marked_step in newest} | {step: work}
        return replace(self, marks=marks, saves=self.saves + 1)

    def continued(self, step: int) -> "Ledger":
        """Return the ledger when an attempt continues after `step`: the work after the save of it is lost.

        If this step has no mark, that of the newest save before it counts. Without any, as for a checkpoint
        from elsewhere, nothing is known to be lost; at step 0 everything is.
        """
        earlier = [marked_step for marked_step in self.marks if marked_step <= step]
        # A checkpoint from elsewhere has no mark, so the work before it is unknown.
        if not earlier and step > 0:
            return self
        work = self.marks[max(earlier)] if earlier else {}
        lost = {part: self.seconds.get(part, 0.0) - work.get(part, 0.0) for part in WORK}
        moved = {part: -seconds for part, seconds in lost.items()} | {"lost": sum(lost.values())}
        marks = {marked_step: self.marks[marked_step] for marked_step in earlier}
        return replace(self.added(moved, self.until), marks=marks)

    def document(self) -> dict[str, Any]:
        """Return the content of `ledger.json`."""
        return {
            "seconds": _rounded(self.seconds),
            "until": round(self.until, 3),
            "ended": self.ended,
            "attempts": self.attempts,
            "failures": self.failures,
            "saves": self.saves,
            "marks": {str(step): _rounded(work) for step, work in self.marks.items()},
        }


def read_ledger(path: Path) -> Ledger:
    """Return the ledger in a file."""
    try:
        fields = parse_object(read_file(path))
        ended = fields["ended"]
        return Ledger(
            seconds=_numbers(fields["seconds"], PARTS),
            until=_numbers(fields, ("until",))["until"],
            ended=None if ended is None else str(ended),
            attempts=max(0, int(fields["attempts"])),
            failures=max(0, int(fields["failures"])),
            saves=max(0, int(fields["saves"])),
            marks={int(step): _numbers(work, WORK) for step, work in fields["marks"].items()},
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it is not a ledger: {error!r}") from None


def goodput_document(ledger: Ledger) -> dict[str, Any]:
    """Return the figures of the ledger, without its marks, as values for JSON."""
    return {
        **{name: value for name, value in ledger.document().items() if name != "marks"},
        "goodput": ledger.goodput,
        "save_seconds": ledger.save_seconds,
        "seconds_between_saves": ledger.seconds_between_saves,
        "seconds_between_failures": ledger.seconds_between_failures,
        "best_save_seconds": ledger.best_save_seconds,
    }


def spent_seconds(ledger: Ledger) -> Iterator[tuple[str, float, float]]:
    """Yield each part that took any time, with its seconds and its share from 0 to 1, in the order of
    `PARTS`.
    """
    total = ledger.total
    for part in PARTS:
        if (seconds := ledger.seconds.get(part, 0.0)) > 0 and total > 0:
            yield part, seconds, seconds / total


def saving_advice(ledger: Ledger) -> str | None:
    """Return in words how often the run should save; None without a save."""
    cost, interval, best = ledger.save_seconds, ledger.seconds_between_saves, ledger.best_save_seconds
    if cost is None or interval is None:
        return None
    facts = f"a save costs {number(cost)} s, and one is made every {number(interval)} s of work"
    if ledger.seconds_between_failures is None:
        return f"{facts}; {'one' if ledger.failures else 'no'} attempt has failed so far"
    often = f"an attempt fails every {number(ledger.seconds_between_failures)} s"
    if best is None:
        return f"{facts}; {often}"
    return f"{facts}; {often}, so that a save every {number(best)} s would lose the least (Young and Daly)"


def _numbers(fields: Mapping[str, Any], names: Mapping[str, str] | tuple[str, ...]) -> dict[str, float]:
    numbers = {name: float(fields[name]) for name in names if name in fields}
    if not all(-1.0 < seconds < _MOST_SECONDS for seconds in numbers.values()):
        raise ValueError("it has a time that cannot be")
    # Rounding may leave a number such as -1e-9.
    return {name: max(0.0, seconds) for name, seconds in numbers.items()}


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {part: round(value, 3) for part, value in seconds.items()}
