"""The parts of an experiment on the devices at hand: mesh, examples, rules, state and step."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from meshwright.base._internal import PyTree
from meshwright.data._internal import Batches, batches
from meshwright.engine._adapters._functional import Functional
from meshwright.engine._compiler import StepOptions, step_options
from meshwright.engine._errors import errors_naming
from meshwright.engine._experiment._experiment import Experiment
from meshwright.engine._training import global_batch
from meshwright.errors import LayoutError
from meshwright.parallel._internal import Layout, apply_mesh_rules, hardware, in_mesh, make_mesh
from meshwright.training._internal import (
    Init,
    Loss,
    Step,
    TrainState,
    Variables,
    abstract_state,
    as_init,
    check_dtypes,
    inferred_rules,
    key_of,
    make_step,
    remat,
    with_parameter_noise,
)


@dataclass(frozen=True)
class Parts:
    """The parts of a run before it has a state."""

    layout: Layout
    """The mesh and the rules that split arrays over it."""
    target: TrainState
    """The state, as structs with shardings."""
    batch: PyTree
    """A global batch, as structs."""
    step: Step
    """The function that makes one update."""
    compiler: StepOptions
    """The options of the compiler for the step."""
    other_batches: Sequence[PyTree] = ()
    """Global batches of all other shapes that may come, as structs."""


def on_hardware(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> Experiment:
    """Return the experiment with the changes of its first mesh rule that matches the devices."""
    with errors_naming("mesh_rules"):
        return apply_mesh_rules(experiment, experiment.mesh_rules, hardware(devices))


def mesh_of(experiment: Experiment, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Return the mesh of some devices; by default of all devices of the run."""
    with errors_naming("mesh"):
        return make_mesh(experiment.mesh, devices)


def batch_sharding(experiment: Experiment, mesh: Mesh) -> NamedSharding:
    """Return the sharding of a batch."""
    with errors_naming("batch_axis_names"):
        return Layout(mesh, (), experiment.batch_axis_names).batch_sharding


def data_of(experiment: Experiment, sharding: NamedSharding) -> Batches:
    """Return the batches to train on."""
    options = experiment.input
    with errors_naming("input"):
        return batches(
            options.examples,
            options.batch_size,
            sharding,
            seed=experiment.seed if options.shuffle else None,
            epochs=options.epochs,
            num_threads=options.num_threads,
            map_seed=(experiment.seed, 0),
        )


def parts_of(
    experiment: Experiment,
    mesh: Mesh,
    rows: PyTree,
    other_rows: Sequence[PyTree] = (),
    init: Init | None = None,
    loss: Loss | None = None,
    target: TrainState | None = None,
) -> Parts:
    """Return the parts of a run on a mesh. Nothing of the run is compiled."""
    compiler = step_options(experiment.compile, mesh)
    init, loss = init or as_init(experiment.model), loss or loss_of(experiment)
    batch = global_batch(rows, experiment.input.batch_size)
    layout = Layout(mesh, _rules(experiment, mesh, init, loss, batch), experiment.batch_axis_names)
    if target is None:
        with errors_naming("rules", LayoutError):
            target = abstract_state(init, experiment.optimizer, layout)
    with errors_naming("compute_dtype"):
        check_dtypes(experiment.compute_dtype, target.params, "compute_dtype")
    step = make_step(
        loss,
        experiment.optimizer,
        layout,
        # No longer "auto": see `settled`.
        microbatches=int(experiment.microbatches),
        pipeline_rounds=experiment.pipeline_rounds,
        pipeline_schedule=experiment.pipeline_schedule,
        compute_dtype=experiment.compute_dtype,
        norms=experiment.logging.norms,
        compiler_options=compiler.options,
    )
    step.compiles_late = experiment.compile.late == "tell"
    others = [global_batch(other, experiment.input.batch_size) for other in other_rows]
    return Parts(layout, target, batch, step, compiler, others)


def loss_of(experiment: Experiment) -> Loss:
    """Return the loss that the step minimises, with remat and parameter noise."""
    loss: Callable[..., Any] = _of_parameters(experiment.loss)
    if experiment.remat is not None:
        with errors_naming("remat"):
            loss = remat(loss, experiment.remat)
    if experiment.parameter_noise:
        with errors_naming("parameter_noise"):
            loss = with_parameter_noise(loss, experiment.parameter_noise)
    return loss


def _of_parameters(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss that explains the error if it calls the parameters as if they were a model."""

    @functools.wraps(loss)
    def called(*arguments: Any, **named: Any) -> Any:
        try:
            return loss(*arguments, **named)
        except TypeError as error:
            if f"'{type(arguments[0]).__name__}' object is not callable" in str(error):
                error.add_note(
                    "The loss of an Experiment is called with the parameters: loss(params, batch, key). It "
                    "calls the model itself: net.apply(params, batch['x'], key=key, train=True), where net = "
                    "mw.functional(...). The loss of a Trainer is given the model."
                )
            raise

    return called


def _rules(experiment: Experiment, mesh: Mesh, init: Init, loss: Loss, batch: PyTree) -> tuple[Any, ...]:
    if experiment.rules is not None:
        return tuple(experiment.rules)
    # If no axis splits parameters, the loss need not be traced.
    if all(size == 1 for axis, size in mesh.shape.items() if axis != "data"):
        return ()
    axes = experiment.model.axes if isinstance(experiment.model, Functional) else {}
    key = key_of(0)
    # Sharding constraints of the model may need the mesh.
    with in_mesh(mesh):
        variables = jax.eval_shape(init, key)
        if not isinstance(variables, Variables):
            variables = Variables(variables, None)
        return inferred_rules(variables, loss, batch, axes=axes)
