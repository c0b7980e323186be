"""Going back before a loss spike: each step's metrics are judged, and the run goes on without some batches.

Metrics are read some steps late, so that the host need not wait for the step it has just launched; but all of
them before a report is written or a state is saved. So no checkpoint has seen a spike. All processes read the
same numbers, and decide alike. A run that is killed before its decision is written sees the spike again.
"""

import dataclasses
import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import read_file, write_whole
from meshwright.checkpoints._internal import Checkpoints, complete_steps, set_aside_after
from meshwright.data._internal import examples_at
from meshwright.engine._settings import Settings
from meshwright.engine._skipped_batches import SkippingBatches
from meshwright.engine._spikes import Rule, Spike
from meshwright.engine._training import Training
from meshwright.errors import DivergedError, InputError
from meshwright.observe._internal import json_number
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick
from meshwright.report._internal import SPIKES, spikes_in
from meshwright.training._internal import RUN_AHEAD

_MOST_EXAMPLES = 10_000
Decision = Mapping[str, Any]


class SpikeDetected(Exception):  # noqa: N818 - caught in the engine, and never shown
    """The loop must go back before a spike."""

    def __init__(self, spike: Spike, batch: int, first: int):
        super().__init__(str(spike))
        self.spike, self.batch, self.first = spike, batch, first


class Rollbacks:
    """The decisions of a run about spikes, and its batches without those that are left out."""

    def __init__(self, settings: Settings, training: Training, directory: Path | None):
        self._spikes, self._directory = settings.spikes, directory
        self._rule = None if settings.spikes is None else Rule(settings.spikes)
        num_before = 0 if settings.spikes is None else settings.spikes.before
        self.data = SkippingBatches(training.data, self._rule, RUN_AHEAD + num_before + 2)
        self._batch_size = int(jax.tree.leaves(training.batch)[0].shape[0])
        self._decisions: Sequence[Sequence[int]] = ()

    def begin(self, step: int) -> None:
        """Leave out what earlier attempts have decided to. Collective."""
        directory = self._directory
        self.data.begin(step)
        if directory is not None:
            self._decisions = processes.on_lead(lambda: _decisions_in(directory))
            self.data.leave_out([batches for _, *batches in self._decisions])

    def judge(self, every: int, always: bool, when_saved: Callable[[int], bool]) -> "Judge | None":
        """Return a function that judges the metrics of each step; None if the settings have no rule."""
        if self._rule is None or self._spikes is None:
            return None
        is_due = lambda step: always or step % every == 0 or when_saved(step)  # noqa: E731
        return Judge(self._rule, self.data, self._spikes.before, is_due)

    def check(self, spike: Spike) -> None:
        """Check that the run may go back once more."""
        assert self._spikes is not None
        if len(self._decisions) >= self._spikes.max_rollbacks:
            steps = ", ".join(str(step) for step, *_ in self._decisions)
            raise DivergedError(
                f"another loss spike: {spike}. The run has gone back {len(self._decisions)} times before, at "
                f"steps {steps}, and spikes.max_rollbacks is {self._spikes.max_rollbacks}.\n  Lower the "
                "learning rate or clip the gradients, go further back (`meshwright resume RUN --from-step "
                "N`), or allow more. spikes.jsonl in the run directory has all decisions."
            )

    def keep_until(self, spiked: SpikeDetected, checkpoints: Checkpoints) -> None:
        """Set aside checkpoints that have seen a batch to leave out, if there is an earlier one. Collective.

        Which batches are left out then does not depend on when states are saved.
        """
        assert self._spikes is not None
        newest = spiked.spike.step - self._spikes.before - 1
        checkpoints.wait()
        if checkpoints.host_memory:
            checkpoints.host_memory.wait()
            steps, _ = checkpoints.host_memory.steps()
            if max(steps, default=0) > newest:
                checkpoints.host_memory.invalidate(
                    max((step for step in steps if step <= newest), default=None)
                )
        processes.on_lead(lambda: _set_aside_after(checkpoints, newest))

    def decide(self, spiked: SpikeDetected, step: int) -> str:
        """Write down which batches are left out, leave them out, and return a line for the user.
        Collective.
        """
        assert self._spikes is not None
        assert self._directory is not None
        self.data.begin(step)
        directory, number = self._directory, self.data.number or 0
        first, last = max(spiked.first, number + 1), spiked.batch + self._spikes.after
        decision = {
            "time": round(time.time(), 3),
            **{name: _as_json(value) for name, value in asdict(spiked.spike).items()},
            "continued_after": step,
            "batches": [first, last],
            **self._positions(first, last),
        }
        # The times of processes differ: all take the decision of process 0.
        self._decisions = processes.on_lead(lambda: _added(directory, decision))
        self.data.leave_out([[first, last]])
        return (
            f"  ↺ loss spike: {spiked.spike}. Going back to step {step}, and leaving out batches {first} to "
            f"{last}, which are {(last - first + 1) * self._batch_size} examples"
        )

    def _positions(self, first: int, last: int) -> dict[str, Any]:
        """Return which examples the batches are made of, as far as the data number them."""
        inner = self.data.get_state()["data"]
        if not isinstance(inner, dict) or not isinstance(inner.get("samples"), int):
            return {}
        start = inner["samples"] + (first - 1 - (self.data.number or 0)) * self._batch_size
        count = (last - first + 1) * self._batch_size
        examples = examples_at({**inner, "samples": start}, count) if count <= _MOST_EXAMPLES else None
        numbers = {} if examples is None else {"examples": examples.tolist()}
        return {"positions": [start, start + count], **numbers}


def without_left_out(settings: Settings, training: Training, directory: Path | None, step: int) -> Training:
    """Return the parts of a run whose data leave out what the run has decided to. Collective."""
    rollbacks = Rollbacks(settings, training, directory)
    rollbacks.begin(step)
    return dataclasses.replace(training, data=rollbacks.data)


class Judge:
    """Judges the metrics of each step by the rule; all so far whenever a report or a save is due."""

    def __init__(self, rule: Rule, data: SkippingBatches, num_before: int, is_due: Callable[[int], bool]):
        self._rule, self._data, self._before, self._is_due = rule, data, num_before, is_due
        self._pending = deque[tuple[int, Any]]()

    def __call__(self, tick: Tick, metrics: Any) -> None:
        """Take the metrics of a step, and judge those that are due."""
        if not tick.last:
            self._pending.append((tick.step, metrics))
        num_pending = 0 if tick.last or self._is_due(tick.step) else RUN_AHEAD
        while len(self._pending) > num_pending:
            step, step_metrics = self._pending.popleft()
            spike = self._rule.judge(step, _numbers(step_metrics))
            if spike is not None:
                raise SpikeDetected(spike, *self._data.numbers(tick.step - step, self._before))


def _set_aside_after(checkpoints: Checkpoints, newest: int) -> list[int]:
    steps = complete_steps(checkpoints.directory)
    earlier = [step for step in steps if step <= newest]
    if not earlier or max(steps) <= newest:
        return []
    return set_aside_after(checkpoints.directory, max(earlier), secrets.token_hex(4))


def _decisions_in(directory: Path) -> list[list[int]]:
    """Return the step of each decision that a run has written down, and its first and last batch."""
    path = directory / SPIKES
    try:
        return [[decision.step, *decision.batches] for decision in (spikes_in(path) if path.exists() else ())]
    except ValueError as error:
        raise InputError(
            f"{path}, which says which batches the run leaves out, is damaged: {error}.\n  Restore it; or "
            "remove it, and the run leaves out only what its newest checkpoint knows."
        ) from None


def _added(directory: Path, decision: Decision) -> list[list[int]]:
    path = directory / SPIKES
    lines = read_file(path) if path.exists() else b""
    write_whole(path, lines + json.dumps(decision).encode() + b"\n")
    return _decisions_in(directory)


def _as_json(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value


def _numbers(metrics: Any) -> dict[str, float]:
    """Return the means among the packed metrics of a step. Histograms stay on the devices."""
    totals, counts = np.asarray(metrics.means, np.float64)
    means: Sequence[float] = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts != 0)
    return {name: float(mean) for name, mean in zip(metrics.mean_names, means, strict=True)}
