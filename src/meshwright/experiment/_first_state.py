"""The state that a run goes on from, or starts with."""

from collections.abc import Callable

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.errors import UsageError
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._parts import Parts, init_of
from meshwright.input import Batches
from meshwright.train import Given, TrainState, check_given, fill_state

Say = Callable[[str], None]


def given_to(experiment: Experiment, target: TrainState, checkpoints: Checkpoints) -> Given:
    """Return what the builder of a new run gives, checked; nothing, where there is a checkpoint of all of it.

    Raises:
      UsageError: it gives something that the state does not have.
    """
    is_new = process.on_lead(checkpoints.latest) is None
    if experiment.init_state_builder is None or not (is_new or checkpoints.left_out(target)):
        return {}
    given = experiment.init_state_builder(target)
    try:
        check_given(given, target)
    except UsageError as error:
        raise UsageError(f"Experiment.init_state_builder: {error}") from None
    return given


def first_state(
    experiment: Experiment, parts: Parts, given: Given, data: Batches, checkpoints: Checkpoints, say: Say
) -> TrainState:
    """Return the state to go on from, restored or fresh around what is `given`, and say which."""

    def fresh() -> TrainState:
        tx, seed = experiment.optimizer, experiment.seed
        return fill_state(parts.target, given, init_of(experiment), tx, seed)

    kept = data if experiment.save_input_iterator else None
    state = checkpoints.resume(parts.target, kept, otherwise=fresh)
    for warning in checkpoints.passed_over:
        say(f"  ✗ {warning}")
    if checkpoints.resumed is not None:
        say(f"  ↻ continuing after step {checkpoints.resumed}")
        if not experiment.save_input_iterator:
            say("    with the data from their beginning: save_input_iterator is False")
    return state
