"""The steps of a run, made again from its newest checkpoint without writing anything into the run."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import PyTree, is_address, local_path
from meshwright.checkpoints._internal import checkpoints_of
from meshwright.engine._internal import (
    Experiment,
    Training,
    as_chosen,
    checkpoints_for,
    compiled_programs,
    newest_step,
    on_devices,
    settings_for,
    training_of,
    without_left_out,
)
from meshwright.errors import InputError, UsageError
from meshwright.observe._internal import merge, read_jsonl
from meshwright.parallel._internal import copy_to
from meshwright.training._internal import TrainState, not_finite, unwatched


@dataclass(frozen=True)
class Played:
    """A run at its newest checkpoint, with its parts."""

    experiment: Experiment
    """The experiment, as it is run on these devices."""
    training: Training
    """The parts of the run; its data are at the position of the checkpoint."""
    state: TrainState
    """The state of the checkpoint, or the first state."""
    is_new: bool
    """True if there is no checkpoint, so that the state is the first one."""


@dataclass(frozen=True)
class BadStep:
    """A step whose result is not finite."""

    step: int
    """The number of the step, counted from 1."""
    state: TrainState
    """The state before the step."""
    batch: PyTree
    """Its batch."""
    position: Mapping[str, Any]
    """The position of the data before the batch."""
    wrong: list[str]
    """The names of what is not finite: metrics, then arrays of the state."""


@contextlib.contextmanager
def opened(experiment: Experiment, run: str | Path | None) -> Iterator[Played]:
    """Restore a run's newest checkpoint, and yield the parts of the run."""
    with contextlib.ExitStack() as stack:
        experiment = on_devices(experiment)
        if jax.process_count() > 1:
            raise UsageError(
                "a run is played again in one process. Start it alone, with as many devices as the run had: "
                "--fake-devices N on a CPU."
            )
        place = experiment.workdir if run is None else str(run)
        save = dataclasses.replace(experiment.save, directory=checkpoints_of(place), memory=None)
        experiment = dataclasses.replace(experiment, workdir=place, save=save, evaluations={}, samples=None)
        settings = settings_for(experiment, None)
        stack.enter_context(compiled_programs(settings.compile.cache))
        made = [as_chosen(experiment)]
        directory = None if is_address(place) else local_path(place)
        training = without_left_out(settings, training_of(made, stack, unwatched()), directory, 0)
        checkpoints = checkpoints_for(settings, training)
        assert checkpoints is not None
        fresh = training.first_state(newest_step(checkpoints, training.target))
        data = training.data if save.data_position else None
        state = checkpoints.resume(training.target, data, otherwise=fresh)
        for batch in (*training.other_batches, training.batch):
            training.step.compile(training.target, batch)
        yield Played(made[-1], training, state, checkpoints.resumed is None)


def last_reported(place: str | Path) -> int | None:
    """Return the last step that a run reported; None if that is not known, as for a run in a store."""
    if is_address(str(place)):
        return None
    path = local_path(place) / "metrics.jsonl"
    try:
        return max((int(report["step"]) for report in read_jsonl(path)), default=None) or None
    except (OSError, InputError, ValueError, KeyError):
        return None


def first_bad_step(played: Played, until: int) -> tuple[BadStep | None, int]:
    """Return the first step whose result is not finite, and the last step that was made."""
    training, state = played.training, played.state
    step = int(state.step)
    while step < until:
        # This passes over what the run leaves out. So the position is that of the batch which is returned.
        if training.data.is_empty():
            break
        position = training.data.get_state()
        batch = next(training.data)
        kept = copied(state)
        state, wrong = stepped(played, state, batch)
        step += 1
        if wrong:
            return BadStep(step, kept, batch, position, wrong), step
    return None, step


def stepped(played: Played, state: TrainState, batch: PyTree) -> tuple[TrainState, list[str]]:
    """Make a step, which donates the state, and return the new one and the names of what is not finite.

    A step whose update was skipped counts as not finite.
    """
    state, metrics = played.training.step(state, batch)
    values = merge([jax.device_get(metrics)])
    numbers = {name: x for name, x in values.items() if isinstance(x, float)}
    wrong = [name for name, x in numbers.items() if not np.isfinite(x)]
    if numbers.get("skipped"):
        wrong.append("skipped")
    return state, wrong + not_finite(played.experiment.optimizer, state)


def copied(state: TrainState) -> TrainState:
    """Return a copy of a state, which a step may donate."""
    return copy_to(state, jax.tree.map(lambda x: x.sharding, state))


def badness(played: Played, state: TrainState) -> Callable[[PyTree], bool]:
    """Return a function that says whether a step from `state` is not finite for a batch."""
    return partial(_is_bad, played, state)


def _is_bad(played: Played, state: TrainState, batch: PyTree) -> bool:
    return bool(stepped(played, copied(state), batch)[1])
