"""Runs of experiments whose `"auto"` settings the planner of this package chooses."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from meshwright.engine import _internal as engine
from meshwright.engine._internal import AheadOfTime, Experiment, Outcome
from meshwright.plan._choice import choose
from meshwright.plan._plan import remedies

_PLANNER = engine.Planner(choose, remedies)


def run(
    experiment: Experiment,
    *,
    origin: Mapping[str, Any] | None = None,
    strict: bool = False,
    verbose: bool = False,
    from_step: int | None = None,
    started: float | None = None,
) -> Outcome:
    """Train an experiment. If its run directory has checkpoints, continue from the newest one.

    Call it on every process, after `mw.parallel.start_processes`.

    Args:
      experiment: The description of the run.
      origin: JSON values that say how to start this run again. They are saved as `experiment.json`.
      strict: If true, a run is not continued with settings that differ from those before. Otherwise the
        differences are printed.
      from_step: The step of the checkpoint to go back to. Later checkpoints are set aside, and later reports
        are removed. If the run is cut off, the same call continues from the newest checkpoint.
      started: The time from which `max_seconds` counts, on the clock `time.monotonic`. By default it is the
        time of the call.
      verbose: If true, details such as the sharding of each array are shown before the run starts. The log
        always has them.

    Raises:
      UsageError: The parts do not fit together, the processes differ, or `from_step` has no checkpoint. It is
        raised before anything compiles.
      InputError: The examples or a checkpoint cannot be used.
      MeshwrightError: The run is complete, but its directory could not be copied to its address.
      DivergedError: A reported loss, or a state that is to be saved, is not finite.
      Interrupted: The program was told to stop. The state is saved.
      PeersError: Another process has ended.

    Example:
      >>> experiment = mw.Experiment(
      ...     workdir="runs/line",
      ...     model=lambda key: {"w": jnp.zeros(())},
      ...     loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
      ...     optimizer=optax.sgd(0.1),
      ...     input=mw.Input({"y": np.ones(16, np.float32)}, batch_size=8),
      ...     max_steps=2,
      ... )
      >>> outcome = mw.run(experiment)
      >>> outcome.step
      2
    """
    how = {"strict": strict, "verbose": verbose, "from_step": from_step, "started": started}
    return engine.run(experiment, _PLANNER, origin=origin, **how)


def compile_ahead(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> AheadOfTime:
    """Compile the step of a run, without an array of the state in memory.

    Args:
      experiment: The experiment.
      devices: The devices to compile for; by default all devices of the run. They are not used, and may be
        descriptions from `jax.experimental.topologies`.

    Raises:
      MeshwrightError: Of the kinds that `run` raises before it starts.

    Example:
      >>> experiment = mw.Experiment(
      ...     workdir="runs/line",
      ...     model=lambda key: {"w": jnp.zeros(())},
      ...     loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
      ...     optimizer=optax.sgd(0.1),
      ...     input=mw.Input({"y": np.ones(16, np.float32)}, batch_size=8),
      ...     max_steps=2,
      ... )
      >>> mw.plan.compile_ahead(experiment).state_bytes
      12
    """
    return engine.compile_ahead(experiment, _PLANNER, devices)
