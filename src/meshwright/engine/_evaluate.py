"""The evaluations of a run without training: they score one of its checkpoints, and write no files."""

import contextlib
import time
from collections.abc import Callable

from meshwright.checkpoints._internal import Checkpoints, complete_steps
from meshwright.engine._directory import compiled_programs
from meshwright.engine._open_run import checkpoints_for
from meshwright.engine._outcome import Outcome
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import CheckpointError, DamagedError, listed
from meshwright.processes import _internal as processes
from meshwright.training._internal import RunningWatchdog, TrainState, unwatched

_MOST_NAMED = 20


def evaluate(
    settings: Settings,
    make: Callable[[contextlib.ExitStack, RunningWatchdog], Training],
    choose: Callable[[], int] | None = None,
) -> Outcome:
    """Return the scores of all evaluations by their names in reports, and the state. Collective."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(processes.broadcasting_errors())
        if choose is not None:
            processes.on_lead(choose)  # before examples are read: there may be no such checkpoint
        stack.enter_context(compiled_programs(settings.compile.cache))
        training = make(stack, unwatched())
        processes.compare("the state and the examples", training.facts)
        for one in training.evaluations:
            one.scoring.check(training.target)
        checkpoints = checkpoints_for(settings, training)
        state = _state(training, checkpoints, choose)
        step, started = int(state.step), time.perf_counter()
        scores = {name: x for one in training.evaluations for name, x in one(step, state, None).items()}
        return Outcome(step, scores, time.perf_counter() - started, state)


def _state(
    training: Training, checkpoints: Checkpoints | None, choose: Callable[[], int] | None
) -> TrainState:
    """Return the state of the chosen checkpoint, or the first state.

    A run that is training may remove the checkpoint before it is read. Then another one is chosen.
    """
    if checkpoints is None:
        return training.first_state(None)()
    target, directory = training.target, checkpoints.directory
    while True:
        step = processes.on_lead(choose or checkpoints.latest)
        fresh = training.first_state(None if checkpoints.left_out(target) else step)
        if step is None:
            return fresh()
        try:
            return checkpoints.restore(step, target, otherwise=fresh)
        except CheckpointError as error:
            steps = processes.on_lead(lambda: complete_steps(directory))
            if step not in steps:
                continue
            if isinstance(error, DamagedError):
                others = listed((str(each) for each in steps if each != step), _MOST_NAMED)
                raise DamagedError(
                    f"the checkpoint of step {step} is damaged: {error}\n"
                    f"  There are checkpoints of other steps: {others or 'none'}. Choose the one to evaluate."
                ) from None
            raise
