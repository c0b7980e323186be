"""Run or evaluate an experiment: make its parts, and hand them to the engine."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.base._internal import tree
from meshwright.checkpoints._internal import checkpoints_of, chosen_step
from meshwright.data._internal import Batches
from meshwright.engine._describe import comparable_settings, describe
from meshwright.engine._evaluate import evaluate as evaluate_parts
from meshwright.engine._evaluation._parts import EvaluationContext, evaluation_facts, evaluation_parts
from meshwright.engine._experiment._auto import Planner, automatic, before_choice, settled
from meshwright.engine._experiment._builders import noted_sources
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._experiment._parts import Parts, batch_sharding, data_of, mesh_of, on_hardware
from meshwright.engine._outcome import Outcome
from meshwright.engine._run import run_engine
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import UsageError
from meshwright.parallel._internal import hardware, mesh_rule
from meshwright.processes import _internal as processes
from meshwright.training._internal import (
    RunningWatchdog,
    TrainState,
    as_init,
    check_given,
    fill_state,
    wider_than,
)


@processes.collective()
def run(
    experiment: Experiment,
    planner: Planner | None = None,
    *,
    origin: Mapping[str, Any] | None = None,
    strict: bool = False,
    verbose: bool = False,
    from_step: int | None = None,
    started: float | None = None,
) -> Outcome:
    """Train an experiment; `mw.run` is this function with the planner of `plan`."""
    with processes.broadcasting_errors():
        experiment = on_devices(experiment)
        # `training_of` adds the experiment without "auto", when the devices and examples are known.
        versions = [experiment]
        settings = dataclasses.replace(
            settings_for(experiment, origin),
            described=lambda: describe(versions[-1]),
            remedies=lambda: planner.remedies(versions[-1]) if planner else "",
            is_strict=strict,
            is_verbose=verbose,
            from_step=from_step,
            started=started,
        )
        return run_engine(settings, partial(training_of, versions, planner=planner))


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
    unscored = dataclasses.replace(experiment, evaluations={}, samples=None)
    return _of_checkpoint(unscored, run, checkpoint).state


def _of_checkpoint(experiment: Experiment, run: str | Path | None, checkpoint: int | str | None) -> Outcome:
    with processes.broadcasting_errors():
        processes.compare("the checkpoint to evaluate", lambda: repr((run, checkpoint)))
        experiment, choose = _chosen(on_devices(experiment), run, checkpoint)
        # An evaluation does not train, so the simplest values of "auto" do.
        make = partial(training_of, [before_choice(experiment)])
        return evaluate_parts(settings_for(experiment, None), make, choose)


def _chosen(
    experiment: Experiment, run: str | Path | None, checkpoint: int | str | None
) -> tuple[Experiment, Callable[[], int] | None]:
    """Return the experiment in the run's directory, and a function that returns the step to evaluate."""
    if run is None and checkpoint is None:
        return experiment, None
    directory = experiment.workdir if run is None else str(run)
    saved_in = processes.on_lead(lambda: checkpoints_of(directory))
    save = dataclasses.replace(experiment.save, directory=saved_in)
    choose = partial(chosen_step, directory, "newest" if checkpoint is None else checkpoint)
    return dataclasses.replace(experiment, workdir=directory, save=save), choose


def on_devices(experiment: Experiment) -> Experiment:
    """Compare the settings and devices of all processes, and return the experiment for these devices."""
    if not isinstance(experiment, Experiment):
        kind = getattr(experiment, "__name__", type(experiment).__name__)
        call = f" Call it: {kind}()." if callable(experiment) else ""
        raise UsageError(f"{kind} is not a mw.Experiment.{call}")
    # Before the first use of a device: there JAX waits for all processes, and an error could not reach them.
    processes.compare("the settings of the experiment", lambda: comparable_settings(experiment))
    processes.compare_devices()
    return on_hardware(experiment)


def settings_for(experiment: Experiment, origin: Mapping[str, Any] | None) -> Settings:
    """Return the settings of the run of an experiment."""
    examples = experiment.input
    return Settings(
        place=experiment.workdir,
        described=lambda: describe(experiment),
        save=experiment.save,
        logging=experiment.logging,
        per_second={examples.item: examples.batch_size * examples.items_per_example},
        stop=experiment.stop,
        spikes=experiment.spikes,
        profile=experiment.profile,
        watchdog=experiment.watchdog,
        compile=experiment.compile,
        origin=origin,
        remark=_rule(experiment),
    )


def training_of(
    versions: list[Experiment],
    stack: contextlib.ExitStack,
    watch: RunningWatchdog,
    planner: Planner | None = None,
) -> Training:
    """Return the parts of an experiment's run. The stack closes the data.

    Appends the experiment without "auto" to its versions.
    """
    experiment = versions[-1]
    mesh = mesh_of(experiment)
    data = stack.enter_context(contextlib.closing(data_of(experiment, batch_sharding(experiment, mesh))))
    with watch.phase("first_batch"):
        rows = data.peek()
    with watch.phase("compile") if automatic(experiment) else contextlib.nullcontext():
        experiment, parts, notes = settled(experiment, mesh, rows, planner, data.shapes())
    versions.append(experiment)
    wider = wider_than(experiment.compute_dtype, parts.batch)
    context = EvaluationContext(parts.layout, experiment.seed, experiment.compute_dtype)
    began_from: list[str] = []
    return Training(
        layout=parts.layout,
        target=parts.target,
        optimizer=experiment.optimizer,
        batch=parts.batch,
        first_rows=data.peek,
        step=parts.step,
        other_batches=parts.other_batches,
        data=data,
        last_step=lambda: experiment.max_steps,
        num_steps=lambda _: experiment.max_steps,
        length=f"max_steps={experiment.max_steps}",
        first_state=partial(_first_state, experiment, parts.target, began_from),
        began_from=began_from,
        has_dropout=getattr(getattr(experiment.model, "__self__", None), "has_dropout", False),
        evaluations=evaluation_parts(experiment.evaluations, experiment.samples, context),
        facts=partial(_facts, experiment, parts, data),
        notes=[*notes, *parts.compiler.summary()],
        remarks=[f"compute_dtype: {wider}"] if wider else [],
    )


def _first_state(
    experiment: Experiment, target: TrainState, began_from: list[str], newest: int | None
) -> Callable[[], TrainState]:
    """Return a function that makes the first state. The arrays that the builder returns are checked here."""
    build = experiment.init_state_builder
    with noted_sources() as sources:
        arrays = [build(target) if build and newest is None else {}]
    try:
        check_given(arrays[0], target)
    except UsageError as error:
        raise UsageError(f"Experiment.init_state_builder: {error}") from None
    began_from += sources
    init, seed = as_init(experiment.model), experiment.seed

    def fresh() -> TrainState:
        # No other reference to these arrays may exist, because the first step donates them.
        return fill_state(target, arrays.pop(), init, experiment.optimizer, seed)

    return fresh


def _facts(experiment: Experiment, parts: Parts, data: Batches) -> dict[str, str]:
    """Return facts on the state and the examples, by path. They must be the same on all processes."""
    state = {name: f"{x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(parts.target).items()}
    examples = {"input": data.facts(), **evaluation_facts(experiment.evaluations)}
    return state | {
        f"{path}: {name}": fact for path, facts in examples.items() for name, fact in facts.items()
    }


def _rule(experiment: Experiment) -> str:
    if not experiment.mesh_rules:
        return ""
    kind = hardware()
    rule = mesh_rule(experiment.mesh_rules, kind)
    return f" · {f'no mesh rule for {kind!r}' if rule is None else f'mesh rule {rule[0]!r}'}"
