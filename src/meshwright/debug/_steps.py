"""The steps of a run, made again from its newest checkpoint without writing into it, and guilty rows."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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

_MOST_TRIALS = 200
_SAMPLED = 4
"""The number of rows that are tried alone before all are suspected of the same."""


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
        workdir = experiment.workdir if run is None else str(run)
        save = dataclasses.replace(experiment.save, directory=checkpoints_of(workdir), memory=None)
        experiment = dataclasses.replace(experiment, workdir=workdir, save=save, evaluations={}, samples=None)
        settings = settings_for(experiment, None)
        stack.enter_context(compiled_programs(settings.compile.cache))
        experiments = [as_chosen(experiment)]
        directory = None if is_address(workdir) else local_path(workdir)
        training = without_left_out(settings, training_of(experiments, stack, unwatched()), directory, 0)
        checkpoints = checkpoints_for(settings, training)
        assert checkpoints is not None
        fresh = training.first_state(newest_step(checkpoints, training.target))
        data = training.data if save.data_position else None
        state = checkpoints.resume(training.target, data, otherwise=fresh)
        for batch in (*training.other_batches, training.batch):
            training.step.compile(training.target, batch)
        yield Played(experiments[-1], training, state, checkpoints.resumed is None)


def last_reported(run: str | Path) -> int | None:
    """Return the last step that a run reported; None if that is not known, as for a run in a store."""
    if is_address(str(run)):
        return None
    path = local_path(run) / "metrics.jsonl"
    try:
        return max((int(report["step"]) for report in read_jsonl(path)), default=None) or None
    except (OSError, InputError, ValueError, KeyError):
        return None


def first_bad_step(played: Played, until: int) -> tuple[BadStep | None, int]:
    """Return the first step whose result is not finite, and the last step that was made."""
    training, state = played.training, played.state
    step = int(state.step)
    while step < until:
        # `is_empty` passes over left-out batches, so that the position is that of the next batch.
        if training.data.is_empty():
            break
        position = training.data.get_state()
        batch = next(training.data)
        previous = copied(state)
        state, wrong = stepped(played, state, batch)
        step += 1
        if wrong:
            return BadStep(step, previous, batch, position, wrong), step
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
    """Return a function that is true of a batch with which a step from `state` is not finite."""
    return lambda batch: bool(stepped(played, copied(state), batch)[1])


class Guilty(NamedTuple):
    """The rows of a batch that make a step not finite."""

    rows: list[int] | None
    """The rows that do it, each alone; all rows if it is not the examples. None if no row was found."""
    are_all: bool
    """False if there may be more rows, as the trials were used up."""


def guilty_rows(is_bad: Callable[[PyTree], bool], batch: PyTree) -> Guilty:
    """Return the rows each of which, repeated over a whole batch, makes the step not finite.

    All rows are returned if each that is tried does: then it is not the examples.
    """
    size = len(jax.tree.leaves(batch)[0])
    num_left, are_all = _MOST_TRIALS, True

    def tried(rows: np.ndarray) -> bool:
        nonlocal num_left
        num_left -= 1
        return is_bad(jax.tree.map(lambda x: np.asarray(x)[np.resize(rows, size)], batch))

    def search(rows: np.ndarray) -> list[int]:
        nonlocal are_all
        if num_left <= 0:
            are_all = False
            return []
        if not tried(rows):
            return []
        if len(rows) == 1:
            return [int(rows[0])]
        middle = len(rows) // 2
        return search(rows[:middle]) + search(rows[middle:])

    sampled = np.unique(np.linspace(0, size - 1, min(_SAMPLED, size)).astype(int))
    if all(tried(sampled[i : i + 1]) for i in range(len(sampled))):
        return Guilty(list(range(size)), are_all=True)
    return Guilty(search(np.arange(size)) or None, are_all)
