"""The evaluations of an experiment by themselves, of any checkpoint of any run."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from meshwright import process
from meshwright.checkpoint import checkpoints_of, chosen_step
from meshwright.engine import Outcome
from meshwright.engine import evaluate as evaluate_parts
from meshwright.errors import UsageError
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._run import on_devices, settings_for, training_of


def evaluate(
    experiment: Experiment, run: str | Path | None = None, checkpoint: int | str | None = None
) -> dict[str, float]:
    """Return all scores of a checkpoint, by their names in reports.

    Nothing is trained and nothing is written: neither scores nor `outputs`, neither in the run's directory
    nor elsewhere. (Compiled programs are kept as `compile.cache` says.) Call it on every process, also while
    the run goes on in other processes.

    Args:
      experiment: the description, which may differ from the run's in mesh, evaluations and examples. Its
        state must be that of the checkpoint.
      run: the directory or URL of a run, or of checkpoints. None stands for the experiment's own run; if that
        has no checkpoint, the first state is evaluated.
      checkpoint: the step; "newest"; "best", which is the best by the score that the run keeps its best
        checkpoint by; or "best:test/loss" for another score. Where nothing tells whether lower or higher
        values are better, "best:test/distance:min" does. None stands for the newest.

    Raises:
      UsageError: there are no `evaluations`, or nothing says which score is meant; or as `run` before its
        first step.
      CheckpointError: there is no such checkpoint, it is damaged, or it does not fit the experiment.
      InputError: examples that cannot be used.

    Example:
      >>> examples = {"y": np.ones(16, np.float32)}
      >>> measure = lambda params, batch: {"w": params["w"] * batch["y"]}
      >>> experiment = mw.Experiment(
      ...     workdir="runs/new",
      ...     model=lambda key: {"w": jnp.zeros(())},
      ...     loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
      ...     optimizer=optax.sgd(0.1),
      ...     input=mw.Input(examples, batch_size=8),
      ...     max_steps=2,
      ...     evaluations={"test": mw.Evaluation(measure, examples)},
      ...     save=mw.Save(when=1, keep=mw.checkpoint.best("test/w", "max")),
      ... )
      >>> mw.evaluate(experiment)
      {'test/w': 0.0}
      >>> mw.run(experiment).step
      2
      >>> mw.evaluate(experiment, checkpoint="best") == mw.evaluate(experiment, "runs/new", 2)
      True
    """
    return dict(evaluate_checkpoint(experiment, run, checkpoint).scores)


@process.shared_work()
def evaluate_checkpoint(
    experiment: Experiment, run: str | Path | None = None, checkpoint: int | str | None = None
) -> Outcome:
    """Return what `evaluate` does together with the step and the state of the checkpoint, and the time.

    Args: as those of `evaluate`.

    Raises: as `evaluate`.
    """
    if not experiment.evaluations:
        raise UsageError("Experiment.evaluations is empty: there is nothing to evaluate.")
    with process.sharing_errors():
        process.compare("the checkpoint to evaluate", lambda: repr((run, checkpoint)))
        experiment, choose = _chosen(on_devices(experiment), run, checkpoint)
        settings, make = settings_for(experiment, None), partial(training_of, experiment)
        return evaluate_parts(settings, experiment.optimizer, make, choose)


def _chosen(
    experiment: Experiment, run: str | Path | None, checkpoint: int | str | None
) -> tuple[Experiment, Callable[[], int] | None]:
    """Return the experiment at the place of the run, and what chooses the checkpoint there."""
    if run is None and checkpoint is None:
        return experiment, None
    place = experiment.workdir if run is None else str(run)
    save = dataclasses.replace(experiment.save, directory=process.on_lead(lambda: checkpoints_of(place)))
    choose = partial(chosen_step, place, "newest" if checkpoint is None else checkpoint)
    return dataclasses.replace(experiment, workdir=place, save=save), choose
