"""The checkpoints of an experiment: where they are, and whether they can be made as it says."""

from pathlib import Path

from meshwright.checkpoint import Checkpoints
from meshwright.experiment._experiment import Experiment, as_casts, as_keep
from meshwright.experiment._parts import naming
from meshwright.train import TrainState


def checkpoints_for(experiment: Experiment, target: TrainState) -> Checkpoints:
    """Return the checkpoints of an experiment, which are not opened yet; `target` is its abstract state.

    Raises:
      UsageError: A field cannot be; it is named.
    """
    save = experiment.checkpoints
    with naming("checkpoints.directory"):
        checkpoints = Checkpoints(
            save.directory or Path(experiment.run) / "checkpoints",
            keep=as_keep(save.keep),
            cast=as_casts(save.cast),
            host_nbytes=save.host_nbytes,
        )
    with naming("checkpoints.cast"):
        checkpoints.check(target)
    return checkpoints
