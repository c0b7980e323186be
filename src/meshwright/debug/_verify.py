"""The proof that a program can be continued to the bit: it is run, killed, continued and compared."""

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.base._internal import documented
from meshwright.checkpoints._internal import complete_steps, diff, open_source, step_name
from meshwright.debug._child import Orders
from meshwright.debug._findings import Cause, Notes, causes, read_notes
from meshwright.errors import DivergedError, InputError, MeshwrightError, UsageError
from meshwright.observe._internal import read_jsonl

_FEWEST = 4
_KINDS = {error.exit_code: error for error in (UsageError, InputError, DivergedError)}
_MOST_LINES = 15


@documented
@dataclass(frozen=True)
class Verified:
    """The comparison of a run that was killed and continued with one that was not."""

    steps: int
    """The number of steps of both runs."""
    killed_after: int
    """The step after which the process was killed."""
    continued_after: int
    """The step of the checkpoint from which another process continued."""
    num_arrays: int
    """The number of arrays of the state."""
    metrics: Sequence[str]
    """The names of the metrics that were compared at each step."""
    differences: Sequence[str]
    """What differs; empty if all is equal to the bit."""
    causes: Sequence[Cause]
    """The causes of the differences."""

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return not self.differences

    def document(self) -> dict[str, Any]:
        """Return everything as values for JSON."""
        return {**asdict(self), "equal": self.is_equal}

    def __str__(self) -> str:
        head = (
            f"{self.steps} steps; killed by SIGKILL after step {self.killed_after}, continued after step "
            f"{self.continued_after}"
        )
        if self.is_equal:
            return (
                f"{head}: equal to the bit.\n  compared: {self.num_arrays} arrays of the state, "
                f"{', '.join(self.metrics)} of each step, and each batch"
            )
        lines = [f"{head}: not equal.", *(f"  {difference}" for difference in self.differences)]
        for cause in self.causes:
            lines += ["", f"  cause: {cause.kind}", f"    {cause.what}"]
            lines += [f"    at {cause.line}"] if cause.line else []
            lines += [f"    {cause.advice}"] if cause.advice else []
        return "\n".join(lines)


def verify_resume(
    target: str,
    settings: Mapping[str, str] = {},
    *,
    steps: int = 12,
    seed: int = 0,
    fake_devices: int | None = None,
) -> Verified:
    """Run an experiment for some steps, kill it, continue it, and compare with a run that was not killed.

    Each run is a process of its own, in a temporary directory. It trains without evaluations, trackers and
    profiles, and does not write to the experiment's own run directory. If the runs differ, two more processes
    find the cause.
    """
    if steps < _FEWEST:
        raise UsageError(f"verify-resume with {steps} steps: it needs at least {_FEWEST}.")
    with tempfile.TemporaryDirectory(prefix="meshwright-verify-") as scratch:
        runs = _Runs(Path(scratch), target, settings, steps, fake_devices)
        killed_after = _step_of_kill(steps, runs.save_every, seed)
        runs.play("a")
        runs.play("b", kill_after=killed_after)
        continued_after = max(complete_steps(runs.workdir("b") / "checkpoints"))
        runs.play("b")
        a, b = runs.notes("a"), runs.notes("b")
        metrics = a.programs[0]["metrics"]
        differences = _differences(runs, a, b, metrics)
        reasons: list[Cause] = []
        if differences:
            runs.play("again")
            runs.play("again", repeats=True)
            reasons = causes(a, runs.notes("again"), b, continued_after)
        num_arrays = len(open_source(runs.workdir("a") / "checkpoints").arrays())
        return Verified(steps, killed_after, continued_after, num_arrays, metrics, differences, reasons)


def _step_of_kill(steps: int, save_every: int, seed: int) -> int:
    """Return a step after the first checkpoint and, if possible, between two of them."""
    between = [step for step in range(save_every + 1, steps) if step % save_every]
    return random.Random(seed).choice(between or [save_every + 1])


@dataclass(frozen=True)
class _Runs:
    """The runs that are compared, below one scratch directory."""

    scratch: Path
    target: str
    settings: Mapping[str, str]
    steps: int
    fake_devices: int | None

    @property
    def save_every(self) -> int:
        return max(2, self.steps // 4)

    def workdir(self, name: str) -> Path:
        return self.scratch / name / "run"

    def notes(self, name: str) -> Notes:
        return read_notes(self.scratch / name / "notes.jsonl")

    def play(self, name: str, *, kill_after: int | None = None, repeats: bool = False) -> None:
        """Start a process and wait for it."""
        (self.scratch / name).mkdir(exist_ok=True)
        notes = str(self.scratch / name / "notes.jsonl")
        orders = Orders(str(self.workdir(name)), notes, self.steps, self.save_every, kill_after, repeats)
        command = self._command(orders)
        process = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        expected = 0 if kill_after is None else -signal.SIGKILL
        if process.returncode == expected:
            return
        if process.returncode == 0:
            raise UsageError(
                f"the data ended before step {kill_after}, so the run could not be killed there: give fewer "
                "steps, --steps N, or more epochs."
            )
        error = "\n  ".join(process.stderr.strip().splitlines()[-_MOST_LINES:])
        kind = _KINDS.get(process.returncode, MeshwrightError)
        raise kind(f"a run of {self.target} failed with exit code {process.returncode}:\n  {error}")

    def _command(self, orders: Orders) -> list[str]:
        words = [f"{name}={text}" for name, text in self.settings.items()]
        devices = ["--fake-devices", str(self.fake_devices)] if self.fake_devices else []
        return [
            *(sys.executable, "-m", "meshwright", "verify-resume", self.target, *words, *devices),
            *("--child", json.dumps(asdict(orders))),
        ]


def _differences(runs: _Runs, a: Notes, b: Notes, metrics: Sequence[str]) -> list[str]:
    """Return the differences between a run and a killed one: state, metrics, batches and programs."""
    differences = _of_states(runs)
    a_reports, b_reports = (_reports(runs.workdir(name), metrics) for name in ("a", "b"))
    for name in metrics:
        steps = [
            step
            for step in sorted({*a_reports, *b_reports})
            if a_reports.get(step, {}).get(name) != b_reports.get(step, {}).get(name)
        ]
        differences += [f"{name} differs at {len(steps)} steps, first at step {steps[0]}"] if steps else []
    steps = [step for step in sorted({*a.batches, *b.batches}) if a.batches.get(step) != b.batches.get(step)]
    differences += [f"batches differ at {len(steps)} steps, first at step {steps[0]}"] if steps else []
    digests = {program["digest"] for program in (*a.programs, *b.programs)}
    return differences + (["the programs of the step differ"] if len(digests) > 1 else [])


def _of_states(runs: _Runs) -> list[str]:
    a, b = (runs.workdir(name) / "checkpoints" for name in ("a", "b"))
    steps = sorted({*complete_steps(a)} & {*complete_steps(b)})
    if complete_steps(a) != complete_steps(b):
        return [f"checkpoints: of steps {complete_steps(a)} and {complete_steps(b)}"]
    for step in steps:
        if different := diff(open_source(a / step_name(step)), open_source(b / step_name(step))):
            names = ", ".join(array.name for array in different[:5]) + (", …" if different[5:] else "")
            return [f"{len(different)} arrays of the state differ, first after step {step}: {names}"]
    return []


def _reports(run: Path, metrics: Sequence[str]) -> dict[int, dict[str, Any]]:
    reports: dict[int, dict[str, Any]] = {}
    for report in read_jsonl(run / "metrics.jsonl"):
        values = {name: repr(report[name]) for name in metrics if name in report}
        if values:
            reports[int(report["step"])] = values
    return reports
