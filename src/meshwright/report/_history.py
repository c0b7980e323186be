"""What a run reported, number by number: curves, attempts, and the best of each score."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Report = Mapping[str, float]
Mode = Literal["min", "max"]

_AT_START = "compile_seconds"
"""Only the report that opens an attempt has it; its other numbers are the state's sizes."""
_LOWER = {"loss", "perplexity", "error", "nll", "bpc", "bpb", "mse", "mae", "rmse", "wer", "cer", "fid"}
_HIGHER = {"accuracy", "acc", "f1", "precision", "recall", "auc", "bleu", "rouge", "map", "match", "r2"}
"""Words in the names of scores that say what is better."""


_TRAINERS = "eval"
"""What `Trainer` calls its evaluation: it reports `eval_loss`."""
_LARGEST = 1e100


@dataclass(frozen=True)
class Series:
    """The values of one number, in the order of their steps."""

    steps: Sequence[int]
    values: Sequence[float]

    @property
    def last(self) -> float:
        """Return the newest value."""
        return self.values[-1]


@dataclass(frozen=True)
class Attempt:
    """What one process of a run did before it ended, or was ended."""

    started: float
    """In seconds since 1970; its step was compiled by then."""
    seconds: float
    """From then to its last report."""
    first_step: int
    last_step: int
    compile_seconds: float | None


@dataclass(frozen=True)
class Best:
    """The best value of a score."""

    step: int
    value: float
    mode: Mode


def series_of(reports: Sequence[Report]) -> dict[str, Series]:
    """Return each number over the steps, without what is told once at the start of an attempt."""
    found: dict[str, dict[int, float]] = {}
    for report in reports:
        if _AT_START not in report:
            for name in report.keys() - {"step", "time"}:
                found.setdefault(name, {})[int(report["step"])] = report[name]
    ordered = {name: sorted(points.items()) for name, points in sorted(found.items())}
    return {
        name: Series([step for step, _ in points], [value for _, value in points])
        for name, points in ordered.items()
    }


def sizes_of(reports: Sequence[Report]) -> dict[str, float]:
    """Return what the newest attempt told at its start: sizes of the state, FLOPs of a step."""
    found = next((report for report in reversed(reports) if _AT_START in report), {})
    return {name: value for name, value in found.items() if name not in ("step", "time")}


def attempts_of(reports: Sequence[Report]) -> list[Attempt]:
    """Return the processes that reported, one after the other."""
    starts = [i for i, report in enumerate(reports) if i == 0 or _AT_START in report]
    return [_attempt(reports[i:end]) for i, end in itertools.pairwise([*starts, len(reports)])]


def evaluators_of(series: Mapping[str, Series], settings: Mapping[str, str]) -> list[str]:
    """Return the names of a run's evaluations: those described, and those that told how long they took."""
    described = [match[1] for path in settings if (match := re.match(r"evalers\.([^.]+)\.", path))]
    timed = [name.removesuffix("/seconds") for name in series if name.endswith("/seconds")]
    unnamed = [_TRAINERS for name in series if name.startswith(f"{_TRAINERS}_")]
    return sorted({*described, *timed, *unnamed})


def evaluated(name: str, evaluators: Sequence[str]) -> tuple[str, str] | None:
    """Return of which evaluation a number is and what it is, `("test", "loss")`; None of one of training."""
    first, slash, rest = name.partition("/")
    if slash and first in evaluators:
        return first, rest
    return (_TRAINERS, name.removeprefix(f"{_TRAINERS}_")) if name.startswith(f"{_TRAINERS}_") else None


def scores_of(series: Mapping[str, Series], evaluators: Sequence[str]) -> dict[str, Series]:
    """Return what evaluations found, without how long they took."""
    found = {name: evaluated(name, evaluators) for name in series}
    return {name: series[name] for name, place in found.items() if place and place[1] != "seconds"}


def mode_of(name: str, settings: Mapping[str, str]) -> Mode | None:
    """Return whether a score is best when lowest or highest: as the run was told, else by its name."""
    for path, value in settings.items():
        if path.endswith(".metric") and value == repr(name):
            told = settings.get(f"{path.removesuffix('.metric')}.mode")
            if told in ("'min'", "'max'"):
                return "min" if told == "'min'" else "max"
    called = name.rpartition("/")[2].lower()
    words = {called, *called.split("_")}
    return "min" if words & _LOWER else "max" if words & _HIGHER else None


def is_finite(value: float) -> bool:
    """Return whether a value is a number; what lies far beyond float32 is taken for infinite."""
    return abs(value) < _LARGEST  # NaN is not


def best_of(points: Series, mode: Mode | None) -> Best | None:
    """Return the best finite value, the newest of equals; None where nothing says what is better."""
    finite = [(value, step) for step, value in zip(points.steps, points.values, strict=True)]
    finite = [(value, step) for value, step in finite if is_finite(value)]
    if mode is None or not finite:
        return None
    sign = 1 if mode == "max" else -1
    value, step = max(finite, key=lambda pair: (sign * pair[0], pair[1]))
    return Best(step, value, mode)


def _attempt(reports: Sequence[Report]) -> Attempt:
    first, last = reports[0], reports[-1]
    times = [report["time"] for report in reports if math.isfinite(report.get("time", math.nan))]
    # Where the clock was set back, the time that it had gained does not count.
    seconds = sum(max(0.0, after - before) for before, after in itertools.pairwise(times))
    return Attempt(
        first.get("time", math.nan),
        seconds if math.isfinite(seconds) else 0.0,
        int(first["step"]),
        int(last["step"]),
        first.get(_AT_START),
    )
