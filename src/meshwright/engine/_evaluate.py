"""The evaluations of a run without training: they score the state from which it would continue."""

import contextlib
from collections.abc import Callable

from meshwright import process
from meshwright.engine._open_run import checkpoints_for, newest_step
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.evaluation import Scores
from meshwright.train import RunningWatchdog, Tx, unwatched


def evaluate(
    settings: Settings, optimizer: Tx, make: Callable[[contextlib.ExitStack, RunningWatchdog], Training]
) -> Scores:
    """Return the scores of all evaluations by their names in reports, and write no files. Collective.

    Args:
      settings: The settings of the run.
      optimizer: The optimizer.
      make: Makes the parts of the run, as in `run`.

    Raises:
      MeshwrightError: As `run` before its first step.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.sharing_errors())
        training = make(stack, unwatched())
        process.compare("the state and the examples", training.facts)
        for one in training.evaluations:
            one.scoring.check(training.target)
        checkpoints = checkpoints_for(settings, training.target, optimizer)
        fresh = training.first_state(newest_step(checkpoints, training.target))
        state = fresh() if checkpoints is None else checkpoints.resume(training.target, None, otherwise=fresh)
        step = int(state.step)
        return {name: x for one in training.evaluations for name, x in one(step, state, None).items()}
