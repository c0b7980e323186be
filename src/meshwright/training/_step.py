"""A training step: a pure function, compiled once, before the run."""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import ref

import jax
import jax.numpy as jnp
import optax

from meshwright.base._internal import PyTree, collector_paused, tree
from meshwright.errors import LayoutError, UsageError
from meshwright.observe._internal import Mean, Packed
from meshwright.parallel._internal import (
    Layout,
    check_axes,
    in_mesh,
    meeting,
    raise_error,
    rewrite,
    splitting_sequences,
)
from meshwright.processes import _internal as processes
from meshwright.program._internal import as_function
from meshwright.training._arguments import (
    Shapes,
    changed,
    differ_in_shape_only,
    placed,
    refuse_donated,
    shapes_of,
    shardings_of,
    undeclared,
)
from meshwright.training._compile import CompilerOptions, compiled_or_kept
from meshwright.training._guard import with_skipped
from meshwright.training._keys import step_key, with_key
from meshwright.training._learning_rates import Rates, learning_rates
from meshwright.training._loss import (
    REPORTED,
    Loss,
    Metrics,
    Objective,
    StatefulLoss,
    as_metric,
    mean_gradients,
    objective,
)
from meshwright.training._norms import global_norm, norms_of
from meshwright.training._optimizers import check_accumulated_once, kept_complex, updated
from meshwright.training._pipeline._pipelined import has_pipeline, over_pipeline, refuse_stacks
from meshwright.training._pipeline._schedule import PipelineSchedule
from meshwright.training._precision import ComputeDtype, check_dtypes, narrowing
from meshwright.training._state import TrainState
from meshwright.training._trainable import Tx, as_trainable, joined, on_devices

log = logging.getLogger("meshwright")
S = TypeVar("S")

StepFunction = (
    Callable[[Any, PyTree], tuple[Any, Mapping[str, Any]]]
    | Callable[[Any, PyTree, jax.Array], tuple[Any, Mapping[str, Any]]]
)
"""A function of one update: `(state, batch) -> (state, metrics)`.

It may take a third argument, the key of the step: `(state, batch, key)`. It must be pure. Its
metrics are a dictionary `{name: scalar, Mean or Histogram}`.
"""


class Step:
    """A compiled training step: `state, metrics = step(state, batch)`. It donates the state.

    `make_step` makes the usual step. If the update is more than one loss and one optimizer (two adversarial
    networks, a loss over two batches, noise on the gradients), write the function yourself:
    `Step(function, layout)`. For complex parameters the function must give the optimizer `jnp.conj` of the
    gradients from `jax.grad`, as `make_step` does. Otherwise the imaginary parts move in the wrong direction.

    The step is compiled for its first arguments, or by `compile`, once for each shape of a batch. If a batch
    of a new shape comes in the middle of a run, the step is compiled again, and the log says so. With several
    processes this is an error, because the others may not get such a batch. A batch of other arrays or dtypes
    is always an error.

    Args:
      function: The function of one update. If it takes a third argument, this is the key of the step,
        `step_key(state)`; the state must then have `seed` and `step`. The state is any pytree of arrays on
        the mesh of `layout`. The function returns it with the same structure, shapes and dtypes. `fit` needs
        a state with `.step`, an integer that counts the batches. The function returns at least one metric,
        because `fit` waits for the metrics to limit the number of steps in flight.
      layout: The mesh over which batches are split. The state keeps its shardings.
      microbatches: The number of microbatches. The batch size per part of the mesh must be a multiple of it.
      idle: A function that takes the error about a mesh axis that only repeats work, and may raise it.
      optimizer: The optimizer of the update, which `learning_rates` needs. Its state is `state.opt_state`.
      compiler_options: The XLA options of this program, such as `{"xla_gpu_enable_triton_gemm": False}`. They
        override those in `XLA_FLAGS`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> def update(state, batch):
      ...     mean = batch["y"].mean()
      ...     return {"step": state["step"] + 1, "mean": state["mean"] + mean}, {"mean": mean}
      >>> state = jax.device_put({"step": jnp.int32(0), "mean": jnp.float32(0)}, layout.replicated)
      >>> state, metrics = mw.training.Step(update, layout)(state, {"y": np.ones(8, np.float32)})
      >>> print(state["step"], state["mean"])
      1 1.0
    """

    def __init__(
        self,
        function: StepFunction,
        layout: Layout,
        *,
        microbatches: int = 1,
        idle: Callable[[LayoutError], None] = raise_error,
        optimizer: Tx | None = None,
        compiler_options: CompilerOptions = MappingProxyType({}),
    ):
        self._function, self._layout, self._microbatches = with_key(function), layout, microbatches
        self._idle, self._compiler_options = idle, compiler_options
        self._rates = None if optimizer is None else learning_rates(optimizer)
        self._newest: Callable[[], Any] = lambda: None
        self._compiled: jax.stages.Compiled | None = None
        self._programs: dict[Shapes, jax.stages.Compiled] = {}
        self._batch: PyTree = None
        self._state: PyTree = None
        self.compile_seconds = 0.0
        """The seconds that tracing and compiling took."""
        self.num_read = 0
        """The number of programs that were read from the compile cache instead of being compiled."""
        self.jaxpr: Any = None
        """The last traced program, for example for `program.count_flops`. None before the first trace."""
        self.returned: Any = None
        """The state and the metrics that this program returns, as structs. None before the first trace."""
        self.digest = ""
        """A digest of the last compiled program, the same in every process; empty before. The code and the
        settings of the step, the mesh, the shapes of batches and JAX's version change it."""
        self.compiles_late = True
        """False to refuse a batch of a shape for which the step was not compiled before the run."""
        self.tell: Callable[[str], None] = log.warning
        """Gets a message when the step is compiled in the middle of a run."""
        self.minimised: str | None = None
        """The name of the metric that the update minimises; None for an update that the user wrote."""
        self.meeting = ""
        """The operation in which rows of the batch meet, if the batch is computed in microbatches."""

    @property
    def num_shapes(self) -> int:
        """The number of batch shapes for which the step is compiled."""
        return len(self._programs)

    def __call__(self, state: S, batch: PyTree) -> tuple[S, Mapping[str, Any]]:
        """Return the new state, and the metrics by name, which stay on the devices until you read one."""
        refuse_donated(state)
        new, metrics = self._computed(state, batch)
        if self._rates is not None:
            # A weak reference, because a state takes much memory.
            self._newest = ref(new)
        return new, metrics

    def learning_rates(self) -> Rates:
        """Return the learning rates of the newest update, for `mw.observe.logger(write, also=...)`.

        They are found by `train.learning_rates`. The result is empty if the state that this step returned
        last no longer exists.
        """
        state = self._newest()
        return {} if state is None or self._rates is None else self._rates(state.opt_state)

    def _computed(self, state: Any, batch: PyTree) -> tuple[Any, Metrics]:
        if self._compiled is None:
            self.compile(tree.abstract(state), batch)
        elif len(self._programs) > 1:
            self._compiled = self._programs.get(shapes_of(batch), self._compiled)
        try:
            return self._compiled(state, batch)  # type: ignore[misc]
        except TypeError as error:
            if shapes_of(batch) in self._programs or not differ_in_shape_only(self._batch, batch):
                raise changed(self._batch, batch) or error from None
        return self._compiled_late(state, batch)(state, batch)

    def compile(self, state: Any, batch: PyTree) -> jax.stages.Compiled:
        """Compile for `state` (structs with shardings) and `batch` (arrays or structs of global shape).

        Collective if the mesh spans all processes.

        Raises:
          UsageError: The loss is not a scalar. Or the function does not return a state and metrics of the
            right kind. Or the processes have traced different programs. Or the compiler refuses an option.
          LayoutError: The batch does not divide over the devices and microbatches. Or the state is not on the
            mesh. Or an axis of the mesh only repeats work.
        """
        if (compiled := self._programs.get(shapes_of(batch))) is not None and self._is_for(state, batch):
            self._compiled = compiled
            return compiled
        started = time.perf_counter()
        with processes.broadcasting_errors(), in_mesh(self._layout.mesh):
            traced = self.trace(state, batch)
            with collector_paused():
                lowered = traced.lower()
            text = processes.program_text(traced, lowered)
            self.digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            if processes.spans_all_processes(self._layout.mesh.devices.flat):
                processes.compare_devices()
                processes.compare("the program of the step", lambda: text)
            devices = self._layout.mesh.devices.flat
            self._compiled, is_read = compiled_or_kept(lowered, self._compiler_options, text, [*devices])
            if self.meeting and not self._programs:
                self.tell(
                    f"microbatches={self._microbatches}: rows of the batch meet in the loss, in "
                    f"{self.meeting}, so pieces of the batch have another loss, and the update is another one"
                )
            self._programs[shapes_of(batch)] = self._compiled
            self.num_read += is_read
            log.info("the step was %s", "read from the compile cache" if is_read else "compiled")
        self.compile_seconds += time.perf_counter() - started
        return self._compiled

    def _is_for(self, state: Any, batch: PyTree) -> bool:
        """Return whether the step is compiled for this state and for batches with these arrays and dtypes."""
        new = tree.abstract(state)
        is_same_tree = jax.tree.structure(new) == jax.tree.structure(self._state)
        if not is_same_tree or jax.tree.leaves(new) != jax.tree.leaves(self._state):
            return False
        batch = placed(batch, self._layout, self._microbatches)
        return not tree.differences(self._batch, batch) or differ_in_shape_only(self._batch, batch)

    def _compiled_late(self, state: Any, batch: PyTree) -> jax.stages.Compiled:
        """Compile in the middle of a run, for a batch of a shape that was not declared before the run."""
        if processes.spans_all_processes(self._layout.mesh.devices.flat) or not self.compiles_late:
            raise undeclared(self._batch, batch)
        changes, seconds_before = tree.differences(self._batch, batch), self.compile_seconds
        compiled = self.compile(tree.abstract(state), batch)
        seconds = self.compile_seconds - seconds_before
        self.tell(f"the step was compiled again, in {seconds:.1f} s, for a batch where {changes}")
        return compiled

    def trace(self, state: Any, batch: PyTree) -> jax.stages.Traced:
        """Trace for `state` and `batch` without compiling. The mesh may be abstract.

        Raises the same errors as `compile`, except those of the compiler.
        """
        batch = placed(batch, self._layout, self._microbatches)
        shardings = shardings_of(state, self._layout)
        jit = partial(jax.jit, donate_argnums=0, out_shardings=(shardings, self._layout.replicated))
        # The mesh is set so that models may use a bare PartitionSpec in a sharding constraint.
        with in_mesh(self._layout.mesh), collector_paused():
            traced = jit(partial(_checked, self._function)).trace(state, batch)
            check_axes(self._layout, state, lambda: traced, self._idle)
            refuse_stacks(traced.jaxpr)
            jaxpr = rewrite(traced.jaxpr, self._layout)
            if jaxpr is not traced.jaxpr:
                traced = jit(as_function(jaxpr, traced.out_info)).trace(state, batch)
        self._state, self._batch = tree.abstract(state), batch
        self.jaxpr, self.returned = traced.jaxpr, traced.out_info
        return traced


def _checked(function: Callable[..., Any], state: Any, batch: PyTree) -> tuple[Any, Packed]:
    returned = function(state, batch)
    if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
        raise UsageError(
            "a step must return (state, metrics), with {'name': scalar, Mean or Histogram} as metrics."
        )
    new, metrics = returned
    changes = tree.differences(state, new)
    if changes:
        raise UsageError(
            f"the state that the step returned differs from the one it received: {changes}.\n"
            "  Return a state with the same structure, shapes and dtypes; `x.astype(old.dtype)` casts."
        )
    _check_names(metrics)
    return new, Packed.of({name: as_metric(name, metric) for name, metric in metrics.items()})


def make_step(
    loss: Loss | StatefulLoss,
    optimizer: Tx,
    layout: Layout,
    *,
    microbatches: int = 1,
    pipeline_rounds: int = 1,
    pipeline_schedule: PipelineSchedule = "gpipe",
    compute_dtype: ComputeDtype = None,
    norms: str | None = None,
    idle: Callable[[LayoutError], None] = raise_error,
    compiler_options: CompilerOptions = MappingProxyType({}),
) -> Step:
    """Return the step that minimises `loss` with `optimizer`.

    Args:
      loss: A pure function `(params, batch, key) -> loss` or `-> (loss, metrics)`; see `Loss`. For a model
        with a state it is `(params, batch, key, model_state) -> (loss, metrics, model_state)`; see
        `StatefulLoss`.
      optimizer: An optax transformation for all parameters, or a `Trainable` for some of them.
      layout: The mesh and the rules by which arrays are split over it.
      microbatches: The number of pieces of a batch. They are computed one after the other, before the one
        update. If the loss uses no randomness and no state, and is a mean over rows that do not meet in it,
        the number does not change the update. A step whose rows meet says so when it is compiled. On a mesh
        with the axis `pipeline` several are computed at a time, each in another stage of `mw.nn.layers`.
      pipeline_rounds: The times that each microbatch goes around the stages of the axis `pipeline`. With more
        rounds each device has more but shorter stages, and idles less.
      pipeline_schedule: The order of the stages. By "gpipe" they go back when all microbatches have gone
        forward, and keep of each what the layers keep. By "1f1b" they keep the inputs of at most 3 p - 1
        microbatches, for p stages, and what the layers keep of one. It needs a loss with one `mw.nn.layers`.
      compute_dtype: The dtype of the parameters that the loss receives, such as "bfloat16", or a table by
        path; see `ComputeDtype`. Only wider floating parameters are cast, including frozen ones. Integers,
        complex and narrower parameters, the model state and the batch are not cast. (The product of float32
        examples and bfloat16 weights is computed in float32; cast the examples in the loss.) The stored
        parameters, their gradients, the updates and the optimizer's state keep their dtypes.
      norms: A pattern for trained parameters. The norms of these parameters and of their gradients become
        metrics: `param_norm/layers/0/q`, `grad_norm/layers/0/q`. The pattern ".*" matches all of them.
      idle: A function that takes the error about a mesh axis that only repeats work; see `Step`.
      compiler_options: The XLA options of this program; see `Step`.

    Returns:
      A `Step` of `TrainState`s. Its metrics are those of the loss, the `loss`, and the `grad_norm` of the
      trained parameters. If the optimizer may skip updates, `skipped` is a metric too. The values are `Mean`s
      and `Histogram`s on the devices.

    Raises:
      UsageError: `compute_dtype` is not a floating dtype, `norms` is not a regular expression, or the
        schedule is not known or has no rounds. When the step is compiled: both `microbatches` and an
        `optax.MultiSteps` in `optimizer` accumulate gradients, a pattern of `compute_dtype` or `norms` has no
        effect, or the loss has several stacks for "1f1b".

    Example:
      >>> layout, optimizer = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.5)
      >>> state = mw.training.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer, 0, layout)
      >>> step = mw.make_step(lambda params, batch: (params["w"] - batch["y"]).mean() ** 2, optimizer, layout)
      >>> state, metrics = step(state, {"y": np.ones((8, 2), np.float32)})
      >>> print(state.params["w"])
      [0.5 0.5]
    """
    over_stages = over_pipeline(layout, microbatches, pipeline_rounds, pipeline_schedule)
    only, narrow = as_trainable(optimizer), narrowing(compute_dtype)
    total_of = objective(loss) if microbatches == 1 else _noting_meeting(objective(loss), lambda: result)
    minimised = splitting_sequences(total_of, layout, batch_at=2)
    norms_by_name = norms_of(norms)

    def step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        check_accumulated_once(state.opt_state, microbatches)
        check_dtypes(compute_dtype, state.params)
        key = step_key(state)
        trained, frozen = only.split(state.params)

        def of_trained(trained: PyTree, model_state: PyTree, *rest: Any) -> Any:
            params = narrow(joined(trained, frozen))
            total, (metrics, new) = minimised(params, model_state, *rest, state.step)
            return total, (metrics, only.updated(model_state, new))

        total, is_pipeline = over_stages(of_trained), has_pipeline(layout)
        grads, metrics, model_state = mean_gradients(
            total, trained, state.model_state, batch, key, microbatches, at_once=is_pipeline
        )
        old_opt_state = state.opt_state if only.opt_state_memory is None else on_devices(state.opt_state)
        with kept_complex(), jax.named_scope("optimizer"):  # a row of `meshwright trace`
            updates, opt_state = updated(only.optimizer, grads, old_opt_state, trained, metrics["loss"])
            _check_updates(trained, updates)
            params = joined(optax.apply_updates(trained, updates), frozen)
        norm = Mean(global_norm(grads), jnp.ones((), jnp.float32))
        metrics = {**metrics, "grad_norm": norm, **norms_by_name(trained, grads)}
        new = replace(state, step=state.step + 1, params=params, opt_state=opt_state, model_state=model_state)
        return new, with_skipped(metrics, updates, old_opt_state, opt_state)

    result = Step(
        step,
        layout,
        microbatches=microbatches,
        idle=idle,
        optimizer=optimizer,
        compiler_options=compiler_options,
    )
    result.minimised = "loss"
    return result


def _noting_meeting(objective: Objective, step_of: Callable[[], Step]) -> Objective:
    """Return an objective that notes in the step, when it is traced, whether rows of the batch meet in it."""

    def total(*arguments: Any) -> Any:
        jaxpr, out = jax.make_jaxpr(objective, return_shape=True)(*arguments)
        start = len(jax.tree.leaves(arguments[:2]))
        of_batch = slice(start, start + len(jax.tree.leaves(arguments[2])))
        step_of().meeting = meeting(jaxpr, of_batch, slice(1))
        return as_function(jaxpr, out)(*arguments)

    return total


def _check_updates(params: PyTree, updates: PyTree) -> None:
    """Raise a `UsageError` if updates do not have the parameters' shapes: they would be broadcast."""
    outlines = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.float32), (params, updates))
    if changes := tree.differences(*({"params": outline} for outline in outlines)):
        raise UsageError(
            f"the optimizer's updates do not have the shapes of the parameters: {changes}.\n"
            "  An optimizer that needs the gradients of single examples, as optax.contrib.dpsgd does, takes "
            "them in an update of your own: mw.Trainer(train_step=...) or mw.training.Step."
        )


def _check_names(metrics: Mapping[str, Any]) -> None:
    reserved = [name for name in metrics if name in REPORTED]
    if reserved or not metrics:
        fault = f"a metric called {reserved[0]!r}, but this name is reserved" if reserved else "no metric"
        raise UsageError(f"the step returned {fault}.\n  Return at least one metric, such as 'loss'.")
