"""The checkpoints of an experiment: where they are, and whether they can be made as it says."""

from meshwright.checkpoint import Checkpoints
from meshwright.errors import UsageError
from meshwright.experiment._experiment import Experiment, as_casts
from meshwright.experiment._parts import naming
from meshwright.storage import join
from meshwright.train import TrainState


def checkpoints_for(experiment: Experiment, target: TrainState) -> Checkpoints:
    """Return the checkpoints of an experiment, which are not opened yet; `target` is its abstract state.

    Raises:
      UsageError: A field cannot be; it is named.
    """
    with naming("checkpoints.directory"):
        checkpoints = _checkpoints(experiment)
    with naming("checkpoints.names"):
        _check_can_continue(checkpoints.left_out(target))
    with naming("checkpoints.cast"):
        checkpoints.check(target)
    return checkpoints


def _check_can_continue(left_out: set[str]) -> None:
    if counted := sorted(left_out & {"step", "seed"}):
        raise UsageError(f"{counted[0]} is left out, without which a run cannot go on where it stood.")


def _checkpoints(experiment: Experiment) -> Checkpoints:
    save = experiment.checkpoints
    try:
        return Checkpoints(
            save.directory or join(experiment.run, "checkpoints"),
            keep=save.keep,
            cast=as_casts(save.cast),
            names=save.names,
            host_nbytes=save.host_nbytes,
        )
    except UsageError as error:
        if save.directory is None:
            raise UsageError(f"{error}\n  Say where else to keep those of {experiment.run}.") from None
        raise
