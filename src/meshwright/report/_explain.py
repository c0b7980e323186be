"""Five sentences on where the time of a run goes, and the change that would help most.

There are three sources: the ledger (seconds of the whole run, by phase), the newest profile (how devices
spend a step) and, if somebody made one, a plan (how long a step should take). Figures without a source are
reported as unknown.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.base._internal import documented, duration, milliseconds, number
from meshwright.errors import InputError, printable
from meshwright.observe._internal import Summary, exchange_seconds, find_profiles, summarize
from meshwright.report._ledger import Ledger, saving_advice
from meshwright.report._run import Run

PLAN = "plan.json"
"""The file in a run directory with the plan of its step, as `meshwright plan --json` prints it."""
_LEAST_GAIN = 0.05
"""The least share of a run that is worth a change."""
_HOST = ("start", "compile", "evaluation", "report", "stall", "lost", "waiting", "other")
_SLOW = " is slower than the others"
_ADVICE = {
    "input": "more threads (`input.num_threads`), less work for each example, or arrays in memory",
    "report": "report less often (`logging.every`), or wrap slow trackers in `mw.observe.behind`",
    "evaluation": "evaluate less often, or on fewer examples",
    "save": "save less often, or by `mw.engine.whenever_free(share=0.01)`, or in memory (`save.memory`)",
    "compile": "keep compiled programs (`compile.cache`), and compile fewer shapes of batches",
    "stall": "look into the logs at the times of stalls, and ask `meshwright doctor RUN` in the next one",
    "lost": "save more often: what is lost is the work since the last save",
    "waiting": "start failed attempts at once: `meshwright launch local --restarts 3`, or a scheduler",
    "exchanges": "another mesh (`meshwright plan --search`), or `compile.options`, which let them overlap",
    "idle": "a larger batch, as the step is small; or find what waits for a value in each step, `float(x)`",
}
"""A remedy for each cause."""


@documented
@dataclass(frozen=True)
class Planned:
    """The times that a plan has for a step."""

    step_seconds: float
    """The seconds of a step."""
    axes_seconds: Mapping[str, float] = field(default_factory=dict)
    """The seconds of exchanges of a step, by mesh axes."""


def planned_from(document: Mapping[str, Any]) -> Planned:
    """Return the times of a plan, from the JSON that `meshwright plan --json` prints."""
    try:
        time = document["time"]
        seconds = {
            printable(str(axes), keep=""): float(axis_seconds)
            for axes, axis_seconds in time["network"].items()
        }
        planned = Planned(float(time["seconds"]), seconds)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"it has no times of a step ({error!r})") from None
    if not all(0 <= axis_seconds < math.inf for axis_seconds in (planned.step_seconds, *seconds.values())):
        raise ValueError("it has a time that cannot be")
    return planned


@documented
@dataclass(frozen=True)
class Explanation:
    """An account of the time of a run; as text, five sentences and the change that would help most."""

    sentences: Mapping[str, str]
    """The sentences on `input`, `host`, `exchanges`, `kernels` and `saves`."""
    first: str
    """The change that would help most, with its figure."""
    gains: Mapping[str, float]
    """The share of the run that each cause takes, from 0 to 1, the largest first."""
    missing: Sequence[str]
    """The sources that there are not, and how to get them."""

    def __str__(self) -> str:
        return "\n".join([*self.sentences.values(), f"What would help most: {self.first}", *self.missing])

    @property
    def cause(self) -> str | None:
        """The cause that takes most, one of the keys of `gains`; None if none is worth a change."""
        cause, share = next(iter(self.gains.items()), (None, 0.0))
        return cause if share >= _LEAST_GAIN else None

    def document(self) -> dict[str, Any]:
        """Return the explanation as values for JSON."""
        texts = {"sentences": dict(self.sentences), "first": self.first, "cause": self.cause}
        return {**texts, "gains": dict(self.gains), "missing": list(self.missing)}


@dataclass(frozen=True)
class _InStep:
    """The shares of a step in which devices compute, only exchange, and are idle."""

    computing: float
    exposed: float
    idle: float
    axes: Mapping[str, float]
    """The share of exchanges, hidden or not, by mesh axes."""
    longest: str
    """A text on the scope that computes longest; "" if unknown."""


def explain(run: Run, planned: Planned | None = None) -> Explanation:
    """Return an account of the time of a run, and the change that would help most.

    Example:
      >>> mw.observe.jsonl("metrics.jsonl")(10, {"loss": 0.5, "input_wait": 0.4, "step_seconds": 0.1})
      >>> print(mw.report._internal.explain(mw.report.read_run(".")).sentences["input"])
      Input: waiting for batches takes 40.0 % of the time of steps.
    """
    ledger = run.ledger if run.ledger is not None and run.ledger.total else None
    inside = _in_step(run)
    gains = _gains(run, ledger, inside)
    sentences = {
        "input": _input(run, ledger),
        "host": _host(run, ledger, inside),
        "exchanges": _exchanges(inside, planned),
        "kernels": _kernels(run, inside, planned),
        "saves": _saves(ledger),
    }
    explanation = Explanation(sentences, "", gains, _missing(run, ledger, inside, planned))
    return Explanation(sentences, _first(run, explanation, inside), gains, explanation.missing)


def _missing(run: Run, ledger: Ledger | None, inside: _InStep | None, planned: Planned | None) -> list[str]:
    notes = []
    if ledger is None:
        notes.append("There is no ledger.json: shares are of steps, not of the whole run.")
    if inside is None:
        notes.append("There is no profile: `profile.steps=100` takes one in the next run.")
    if planned is None:
        command = f"`meshwright plan MODULE:FUNCTION --on HARDWARE --json > {run.location}/{PLAN}`"
        notes.append(f"There is no plan: {command} makes one.")
    return notes


def _in_step(run: Run) -> _InStep | None:
    try:
        summaries = [summarize(file) for file in find_profiles(run.directory)]
    except InputError:
        return None
    usable = [summary for summary in summaries if summary.devices and summary.step_seconds and summary.steps]
    shares = [device for summary in usable for device in _device_shares(summary)]
    if not shares:
        return None
    computing, exposed, idle = (statistics.fmean(column) for column in zip(*shares, strict=True))
    busy = sum(device.busy_seconds for summary in usable for device in summary.devices)
    axes: dict[str, float] = defaultdict(float)
    for summary in usable:
        for names, seconds in exchange_seconds(summary, _mesh_of(run)).items():
            axes["+".join(names) or "unknown axes"] += (1 - idle) * seconds / busy
    scopes = [scope for scope in usable[0].scopes if not scope.scope.startswith("(")]
    longest = f"{scopes[0].scope} takes longest" if scopes else ""
    return _InStep(computing, exposed, idle, dict(axes), longest)


def _mesh_of(run: Run) -> dict[str, int]:
    mesh = run.environment.get("mesh")
    sizes = mesh if isinstance(mesh, dict) else {}
    is_one = all(type(size) is int and 0 < size < 2**20 for size in sizes.values())
    return sizes if is_one else {}


def _device_shares(summary: Summary) -> Iterator[tuple[float, float, float]]:
    """Yield for each device the shares of a step that it computes, only exchanges, and is idle."""
    for device in summary.devices:
        busy = device.busy_seconds / len(summary.steps)
        exposed = device.exposed_seconds / len(summary.steps)
        # A profile of one step has no time between steps.
        whole = max(busy, device.step_seconds or 0.0)
        if busy:
            yield (busy - exposed) / whole, exposed / whole, (whole - busy) / whole


def _gains(run: Run, ledger: Ledger | None, inside: _InStep | None) -> dict[str, float]:
    """Return the share of the run that each cause takes, the largest first."""
    gains: dict[str, float] = {}
    of_steps = 1.0
    if ledger is not None:
        shares = {part: seconds / ledger.total for part, seconds in ledger.seconds.items()}
        gains |= {part: share for part, share in shares.items() if part in _ADVICE}
        # Each program must be compiled once; only the compilations of later attempts can be saved.
        gains["compile"] = shares.get("compile", 0.0) * (1 - 1 / max(1, ledger.attempts))
        of_steps = shares.get("step", 0.0)
    elif (waited := _mean(run, "input_wait")) is not None:
        gains["input"] = waited
    if inside is not None:
        gains |= {"exchanges": of_steps * inside.exposed, "idle": of_steps * inside.idle}
    return dict(sorted(gains.items(), key=lambda pair: -pair[1]))


def _input(run: Run, ledger: Ledger | None) -> str:
    waited = _mean(run, "input_wait")
    of_steps = "" if waited is None else f"{_percent(waited)} of the time of steps"
    if ledger is None:
        return f"Input: waiting for batches takes {of_steps or 'an unknown share of the run'}."
    share = _percent(ledger.seconds.get("input", 0.0) / ledger.total)
    also = f" ({of_steps}, by the reports)" if of_steps else ""
    return f"Input: waiting for batches takes {share} of the run{also}."


def _host(run: Run, ledger: Ledger | None, inside: _InStep | None) -> str:
    facts = []
    if ledger is not None:
        parts = {part: ledger.seconds.get(part, 0.0) / ledger.total for part in _HOST}
        parts_shown = [f"{part} {_percent(share)}" for part, share in parts.items() if share >= 0.001]
        facts.append(
            f"{', '.join(parts_shown) or 'nothing to speak of'} of the run's {duration(ledger.total)}"
        )
    if inside is not None:
        facts.append(f"devices wait for the host {_percent(inside.idle)} of a profiled step")
    facts += [incident.message.strip(" !") for incident in run.incidents if _SLOW in incident.message][-1:]
    return f"Host: {'; '.join(facts) or 'unknown'}."


def _exchanges(inside: _InStep | None, planned: Planned | None) -> str:
    plan = ""
    if planned is not None and planned.axes_seconds:
        axes = ", ".join(f"{axis} {milliseconds(x)}" for axis, x in planned.axes_seconds.items())
        plan = f"; planned are {axes}"
    if inside is None:
        return f"Exchanges: unknown without a profile{plan}."
    if not inside.axes:
        return f"Exchanges: none in a profiled step{plan}."
    by_axis = ", ".join(f"{axis} {_percent(share)}" for axis, share in inside.axes.items())
    return f"Exchanges: {by_axis} of a profiled step; {_percent(inside.exposed)} nothing hides{plan}."


def _kernels(run: Run, inside: _InStep | None, planned: Planned | None) -> str:
    step, mfu = _last(run, "step_seconds"), _last(run, "mfu")
    facts = [] if step is None else [f"a step takes {milliseconds(step)}"]
    facts += [] if planned is None else [f"planned are {milliseconds(planned.step_seconds)}"]
    facts += [] if mfu is None else [f"{_percent(mfu)} of the devices' peak"]
    if inside is not None:
        facts.append(f"devices compute {_percent(inside.computing)} of a profiled step")
        facts += [inside.longest] if inside.longest else []
    return f"Kernels: {'; '.join(facts) or 'unknown'}."


def _saves(ledger: Ledger | None) -> str:
    if ledger is None:
        return "Saves: unknown without a ledger."
    share = _percent(ledger.seconds.get("save", 0.0) / ledger.total)
    advice = saving_advice(ledger)
    return f"Saves: they take {share} of the run{f'; {advice}' if advice else ''}."


def _first(run: Run, explanation: Explanation, inside: _InStep | None) -> str:
    cause = explanation.cause
    if cause is None:
        rest = f": {inside.longest} in a step" if inside and inside.longest else ""
        return f"no cause takes {_percent(_LEAST_GAIN)} of the run or more{rest}."
    best = run.ledger.best_save_seconds if run.ledger and cause in ("save", "lost") else None
    often = f"; by its own figures, every {number(best)} s of work" if best else ""
    axis = next(iter(inside.axes), "") if inside and cause == "exchanges" else ""
    subject = f"{cause}, most of all over {axis}" if axis else cause
    return f"{subject}, {_percent(explanation.gains[cause])} of the run: {_ADVICE[cause]}{often}."


def _mean(run: Run, name: str) -> float | None:
    points = run.series.get(name)
    values = [x for x in points.values if math.isfinite(x)] if points else []
    return statistics.fmean(values) if values else None


def _last(run: Run, name: str) -> float | None:
    return run.series[name].last if name in run.series else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
