"""The evaluation of a checkpoint without training."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from meshwright.checkpoints._internal import checkpoints_of, chosen_step
from meshwright.engine._evaluate import evaluate as evaluate_parts
from meshwright.engine._experiment._auto import before_choice
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._experiment._run import on_devices, settings_for, training_of
from meshwright.engine._outcome import Outcome
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes
from meshwright.training._internal import TrainState


def evaluate(
    experiment: Experiment, run: str | Path | None = None, checkpoint: int | str | None = None
) -> dict[str, float]:
    """Return all scores of a checkpoint, by their names in reports.

    It does not train, and writes neither scores nor `outputs`. Only compiled programs are kept, as
    `compile.cache` says. Call it on every process. The run may still train in other processes.

    Args:
      experiment: The description. It may differ from that of the run in mesh, evaluations and examples, but
        must have the same state as the checkpoint.
      run: The directory or URL of a run, or of checkpoints. None stands for the experiment's own run; if it
        has no checkpoint, the first state is evaluated.
      checkpoint: The step, "newest", or "best". "best" is the best by the score that the run keeps its best
        checkpoint by, and "best:test/loss" by another score. "best:test/distance:min" also says that lower
        values are better. None stands for the newest.

    Raises:
      UsageError: There are no evaluations, the score is not known, or the settings are invalid.
      CheckpointError: There is no such checkpoint, it is damaged, or it does not fit the experiment.
      InputError: The examples cannot be used.

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
      ...     save=mw.Save(when=1, keep=mw.checkpoints.best("test/w", "max")),
      ... )
      >>> mw.evaluate(experiment)
      {'test/w': 0.0}
      >>> mw.run(experiment).step
      2
      >>> mw.evaluate(experiment, checkpoint="best") == mw.evaluate(experiment, "runs/new", 2)
      True
    """
    return dict(evaluate_checkpoint(experiment, run, checkpoint).scores)


@processes.collective()
def evaluate_checkpoint(
    experiment: Experiment, run: str | Path | None = None, checkpoint: int | str | None = None
) -> Outcome:
    """Return the scores of a checkpoint with its step, its state and the seconds that it took."""
    if not experiment.evaluations and (experiment.samples is None or experiment.samples.num_samples == 0):
        raise UsageError("Experiment.evaluations is empty: there is nothing to evaluate.")
    return _of_checkpoint(experiment, run, checkpoint)


def state_of_checkpoint(
    experiment: Experiment, run: str | Path | None = None, checkpoint: int | str | None = None
) -> TrainState:
    """Return the state of a checkpoint, on the experiment's mesh. Collective."""
    return _of_checkpoint(
        dataclasses.replace(experiment, evaluations={}, samples=None), run, checkpoint
    ).state


def _of_checkpoint(experiment: Experiment, run: str | Path | None, checkpoint: int | str | None) -> Outcome:
    with processes.broadcasting_errors():
        processes.compare("the checkpoint to evaluate", lambda: repr((run, checkpoint)))
        experiment, choose = _chosen(on_devices(experiment), run, checkpoint)
        made = [before_choice(experiment)]  # an evaluation does not train
        settings, make = settings_for(experiment, None), partial(training_of, made)
        return evaluate_parts(settings, make, choose)


def _chosen(
    experiment: Experiment, run: str | Path | None, checkpoint: int | str | None
) -> tuple[Experiment, Callable[[], int] | None]:
    """Return the experiment in the run's directory, and a function that returns the step to evaluate."""
    if run is None and checkpoint is None:
        return experiment, None
    place = experiment.workdir if run is None else str(run)
    save = dataclasses.replace(experiment.save, directory=processes.on_lead(lambda: checkpoints_of(place)))
    choose = partial(chosen_step, place, "newest" if checkpoint is None else checkpoint)
    return dataclasses.replace(experiment, workdir=place, save=save), choose
