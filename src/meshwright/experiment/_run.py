"""From a description to a run: its parts are made, and handed to the engine."""

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from meshwright import process, tree
from meshwright.engine import (
    Outcome,
    Profile,
    Reporting,
    Saving,
    Settings,
    Stop,
    Training,
    Watchdog,
    describe,
    naming,
    settings_of,
)
from meshwright.engine import run as run_parts
from meshwright.errors import UsageError
from meshwright.experiment._evaluations import evaluations_of
from meshwright.experiment._experiment import Experiment, as_casts
from meshwright.experiment._parts import (
    Parts,
    batch_sharding,
    data_of,
    init_of,
    mesh_of,
    on_hardware,
    parts_of,
)
from meshwright.input import Batches, facts_of
from meshwright.sharding import hardware, mesh_rule
from meshwright.train import TrainState, Watchdog, check_given, fill_state, wider_than


@process.shared_work()
def run(
    experiment: Experiment,
    *,
    origin: Mapping[str, Any] | None = None,
    strict: bool = False,
    verbose: bool = False,
) -> Outcome:
    """Train as `experiment` says, continuing what its run directory holds.

    Call it on every process, after `process.start`.

    Args:
      experiment: what to do.
      origin: JSON-able: how to start this run again. Kept as `experiment.json`.
      strict: whether to refuse to go on with other settings than the run was trained with so far, which are
        told otherwise.
      verbose: whether to show details before it starts, as where each array lies; the log has them anyway.

    Raises:
      UsageError: before anything compiles, where the parts do not fit together, or not all processes have the
        same.
      InputError: examples or a checkpoint that cannot be used.
      MeshwrightError: the run directory, of which all is done, could not be put at its address.
      DivergedError: a reported loss, or a state that is to be saved, is not finite.
      Interrupted: told to stop; the state is saved.
      PeersError: another process is gone.
    """
    with process.telling():
        # Before a device is touched: JAX waits for all processes there, and hears of no error.
        process.compare("the settings of the experiment", lambda: settings_of(experiment))
        process.compare_devices()
        experiment = on_hardware(experiment)
        settings = settings_for(experiment, origin, strict, verbose)
        return run_parts(settings, experiment.optimizer, partial(training_of, experiment))


def settings_for(
    experiment: Experiment, origin: Mapping[str, Any] | None, strict: bool, verbose: bool
) -> Settings:
    """Return how the run of an experiment goes."""
    save, given, timeout = experiment.save, experiment.input, experiment.watchdog_timeout_seconds
    return Settings(
        place=experiment.run,
        described=lambda: describe(experiment),
        saving=Saving(
            when=save.when,
            keep=save.keep,
            directory=save.directory,
            cast=as_casts(save.cast),
            names=save.names,
            host_nbytes=save.host_nbytes,
            keeps_position=experiment.save_input_iterator,
        ),
        reporting=Reporting(
            every=experiment.log_every,
            per_second={given.item: given.batch_size * given.items_per_example},
            trackers=experiment.trackers,
        ),
        stop=Stop(experiment.max_seconds, experiment.stop_early),
        profile=Profile(
            experiment.start_trace_steps, experiment.num_trace_steps, experiment.start_trace_process_indices
        ),
        watchdog=None if timeout is None else Watchdog(timeout, experiment.crash_on_hang),
        compile_cache=experiment.compile_cache,
        origin=origin,
        is_strict=strict,
        is_verbose=verbose,
        remark=_rule(experiment),
    )


def training_of(experiment: Experiment, stack: contextlib.ExitStack, watch: Watchdog) -> Training:
    """Return the parts of an experiment's run. The data are closed with `stack`."""
    mesh = mesh_of(experiment)
    data = stack.enter_context(contextlib.closing(data_of(experiment, batch_sharding(experiment, mesh))))
    with watch.phase("first_batch"):
        rows = data.peek()
    parts = parts_of(experiment, mesh, rows, data.shapes())
    wider = wider_than(experiment.compute_dtype, parts.batch)
    return Training(
        layout=parts.layout,
        target=parts.target,
        batch=parts.batch,
        step=parts.step,
        other_batches=parts.other_batches,
        data=data,
        last_step=lambda: experiment.max_steps,
        num_steps=lambda done: experiment.max_steps,
        asked=f"max_steps={experiment.max_steps}",
        first_state=partial(_first_state, experiment, parts.target),
        evaluations=evaluations_of(experiment, parts.layout),
        facts=partial(_facts, experiment, parts, data),
        remarks=[f"compute_dtype: {wider}"] if wider else [],
    )


def _first_state(experiment: Experiment, target: TrainState, newest: int | None) -> Callable[[], TrainState]:
    """Return what makes a first state around what the builder gives, which is checked.

    Raises:
      UsageError: it gives something that the state does not have.
    """
    build = experiment.init_state_builder
    given = [build(target) if build and newest is None else {}]
    try:
        check_given(given[0], target)
    except UsageError as error:
        raise UsageError(f"Experiment.init_state_builder: {error}") from None
    init, seed = init_of(experiment), experiment.seed

    def fresh() -> TrainState:
        # Nothing else may hold what was given: the first step donates it.
        return fill_state(target, given.pop(), init, experiment.optimizer, seed)

    return fresh


def _facts(experiment: Experiment, parts: Parts, data: Batches) -> dict[str, str]:
    """Return what must be the same on all processes of an experiment's state and examples, by path."""
    state = {name: f"{x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(parts.target).items()}
    read = {"input": data.facts()}
    for name, evaler in experiment.evaluations.items():
        with naming(f"evaluations.{name}"):
            read[f"evaluations.{name}"] = facts_of(evaler.examples)
    return state | {f"{place}: {name}": said for place, facts in read.items() for name, said in facts.items()}


def _rule(experiment: Experiment) -> str:
    if not experiment.mesh_rules:
        return ""
    here = hardware()
    rule = mesh_rule(experiment.mesh_rules, here)
    return f" · {f'no mesh rule for {here!r}' if rule is None else f'mesh rule {rule[0]!r}'}"
