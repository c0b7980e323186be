"""A training step: a pure function, compiled once, before the run."""

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

from meshwright import process, tree
from meshwright.collector import collector_paused
from meshwright.errors import LayoutError, UsageError
from meshwright.metrics import Mean, Packed
from meshwright.sharding import Layout, as_function, check_axes, in_mesh, mended, refused
from meshwright.train._compiler_options import CompilerOptions, compiled_with
from meshwright.train._complex import kept_complex
from meshwright.train._guard import with_skipped
from meshwright.train._keys import step_key, with_key
from meshwright.train._learning_rates import Rates, learning_rates
from meshwright.train._loss import (
    REPORTED,
    Loss,
    Metrics,
    StatefulLoss,
    as_metric,
    mean_gradients,
    objective,
)
from meshwright.train._multi_steps import check_accumulated_once
from meshwright.train._norms import global_norm, norms_of
from meshwright.train._offload import on_devices
from meshwright.train._placed import placed, refuse_donated, shardings_of
from meshwright.train._precision import ComputeDtype, check_dtypes, narrowing
from meshwright.train._shapes import Shapes, changed, differ_in_shape_only, shapes_of, undeclared
from meshwright.train._state import TrainState
from meshwright.train._trainable import Tx, as_trainable, joined
from meshwright.tree import PyTree

log = logging.getLogger("meshwright")
S = TypeVar("S")

StepFunction = (
    Callable[[Any, PyTree], tuple[Any, Mapping[str, Any]]]
    | Callable[[Any, PyTree, jax.Array], tuple[Any, Mapping[str, Any]]]
)
"""A whole update: `(state, batch) -> (state, metrics)` or `(state, batch, key) -> (state, metrics)`.

It is pure, and its metrics are `{name: scalar, Mean or Histogram}`.
"""


class Step:
    """A compiled training step: `state, metrics = step(state, batch)`. The state given is donated.

    `make_step` makes the usual one. For an update that is not one loss under one optimizer (two networks
    against each other, a loss over two batches, noised gradients) write the function yourself:
    `Step(function, layout)`. Of complex parameters it must give an optimizer `jnp.conj` of what `jax.grad`
    returns, as `make_step` does: without, imaginary parts move uphill.

    It is compiled for the first arguments it meets, or by `compile`, once for each shape that batches have.
    For a batch of another shape in the middle of a run it is compiled then, which is logged; with several
    processes that is an error, since the others may not meet it. So is a batch of other arrays or dtypes.

    Args:
      function: the update. A third argument, if it takes one, is the key of the step, `step_key(state)`, of a
        state that has `seed` and `step`. Its state is any pytree of arrays that are on the mesh of `layout`,
        and comes back with the same structure, shapes and dtypes; `fit` needs it to have `.step`, an integer
        that counts the updates. There is at least one metric: `fit` waits for them, so as not to run too far
        ahead.
      layout: the mesh, over which batches are split; the state stays where it is.
      microbatches: a number that the batch size, per part of the mesh, must be a multiple of.
      idle: a function that is given the error about a mesh axis that only repeats work, and may raise it.
      optimizer: the optimizer of the update, for `learning_rates`; its state is `state.opt_state`.
      compiler_options: XLA's options for this program, `{"xla_gpu_enable_triton_gemm": False}`. They have
        precedence over those of `XLA_FLAGS`.

    Example:
      >>> layout = mw.Layout(mw.make_mesh("data=-1"))
      >>> def update(state, batch):
      ...     mean = batch["y"].mean()
      ...     return {"step": state["step"] + 1, "mean": state["mean"] + mean}, {"mean": mean}
      >>> state = jax.device_put({"step": jnp.int32(0), "mean": jnp.float32(0)}, layout.replicated)
      >>> state, metrics = mw.Step(update, layout)(state, {"y": np.ones(8, np.float32)})
      >>> print(state["step"], state["mean"])
      1 1.0
    """

    def __init__(
        self,
        function: StepFunction,
        layout: Layout,
        *,
        microbatches: int = 1,
        idle: Callable[[LayoutError], None] = refused,
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
        """Seconds that tracing and compiling took."""
        self.jaxpr: Any = None
        """The program traced last, for example for `program.count_flops`; None before the first trace."""

    @property
    def num_shapes(self) -> int:
        """For how many shapes of batches it is compiled."""
        return len(self._programs)

    def __call__(self, state: S, batch: PyTree) -> tuple[S, Mapping[str, Any]]:
        """Return the new state and the metrics, by name. They stay on the devices until one is asked for.

        Raises:
          UsageError: the batch has another structure or dtype than the first, or, with several processes, a
            shape for which it was not compiled; or the state was given to a step before.
        """
        refuse_donated(state)
        new, metrics = self._computed(state, batch)
        if self._rates is not None:
            self._newest = ref(new)  # and no more than that: a state takes memory
        return new, metrics

    def learning_rates(self) -> Rates:
        """Return the learning rates of the newest update, for `mw.metrics.logger(write, also=...)`.

        They are those that the optimizer shows, see `train.learning_rates`, as long as the state that this
        step returned last is there; else none.
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

        Collective on a mesh of all processes.

        Raises:
          UsageError: the loss is not a scalar, or the function returns not what it should; or another program
            comes out on another process: found before anything compiles. Or the compiler refuses an option.
          LayoutError: the batch does not divide over the devices and microbatches, the state is not on the
            mesh, or an axis of the mesh only repeats work.
        """
        if (known := self._programs.get(shapes_of(batch))) is not None and self._is_for(state, batch):
            self._compiled = known
            return known
        started = time.perf_counter()
        with process.sharing_errors(), in_mesh(self._layout.mesh):
            traced = self.trace(state, batch)
            with collector_paused():
                lowered = traced.lower()
            if process.spans_all_processes(self._layout.mesh.devices.flat):
                process.compare_devices()
                process.compare("the program of the step", lambda: process.program_text(traced, lowered))
            self._compiled = self._programs[shapes_of(batch)] = compiled_with(lowered, self._compiler_options)
        self.compile_seconds += time.perf_counter() - started
        return self._compiled

    def _is_for(self, state: Any, batch: PyTree) -> bool:
        """Return whether it is compiled for such a state, and for batches of the same arrays and dtypes."""
        new, known = tree.abstract(state), self._state
        if jax.tree.structure(new) != jax.tree.structure(known) or jax.tree.leaves(new) != jax.tree.leaves(
            known
        ):
            return False
        batch = placed(batch, self._layout, self._microbatches)
        return not tree.differences(self._batch, batch) or differ_in_shape_only(self._batch, batch)

    def _compiled_late(self, state: Any, batch: PyTree) -> jax.stages.Compiled:
        """Compile in the middle of a run, for a batch of a shape of which nobody said that it would come."""
        if process.spans_all_processes(self._layout.mesh.devices.flat) and jax.process_count() > 1:
            raise undeclared(self._batch, batch)
        changes = tree.differences(self._batch, batch)
        before = self.compile_seconds
        compiled = self.compile(tree.abstract(state), batch)
        seconds = self.compile_seconds - before
        log.warning("the step was compiled again, in %.1f s, for a batch where %s", seconds, changes)
        return compiled

    def trace(self, state: Any, batch: PyTree) -> jax.stages.Traced:
        """Trace for `state` and `batch` as `compile` does, compiling nothing; the mesh may be abstract.

        Raises: as `compile`.
        """
        batch = placed(batch, self._layout, self._microbatches)
        shardings = shardings_of(state, self._layout)
        jit = partial(jax.jit, donate_argnums=0, out_shardings=(shardings, self._layout.replicated))
        # In the mesh, so that models may constrain by bare PartitionSpecs.
        with in_mesh(self._layout.mesh), collector_paused():
            traced = jit(partial(_checked, self._function)).trace(state, batch)
            check_axes(self._layout, state, lambda: traced, self._idle)
            jaxpr = mended(traced.jaxpr, self._layout)
            if jaxpr is not traced.jaxpr:
                traced = jit(as_function(jaxpr, traced.out_info)).trace(state, batch)
        self._state, self._batch, self.jaxpr = tree.abstract(state), batch, traced.jaxpr
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
            f"the step returned another state than it was given: {changes}.\n"
            "  Return one of the same structure, shapes and dtypes; `x.astype(old.dtype)` casts."
        )
    _check_names(metrics)
    return new, Packed.of({name: as_metric(name, metric) for name, metric in metrics.items()})


def make_step(
    loss: Loss | StatefulLoss,
    optimizer: Tx,
    layout: Layout,
    *,
    microbatches: int = 1,
    compute_dtype: ComputeDtype = None,
    norms: str | None = None,
    idle: Callable[[LayoutError], None] = refused,
    compiler_options: CompilerOptions = MappingProxyType({}),
) -> Step:
    """Return the step that minimises `loss` with `optimizer`.

    Args:
      loss: `(params, batch, key) -> loss` or `(loss, metrics)`, see `Loss`. Pure. Of a model with a state
        `(params, batch, key, model_state) -> (loss, metrics, model_state)`, see `StatefulLoss`.
      optimizer: an optax transformation, for all parameters, or a `Trainable`, for some.
      layout: the mesh, and the rules by which arrays are split over it.
      microbatches: the number of pieces in which each batch is computed, one after the other, before the one
        update. For a loss that uses no randomness and no state the number does not change the update.
      compute_dtype: floating parameters that are wider are cast to it for the loss, frozen ones too:
        "bfloat16", say, or a table by path, see `ComputeDtype`. All else is as it is: integers, complex
        and narrower parameters, the model state, the batch (float32 examples times bfloat16 weights are
        computed in float32: cast them in the loss), and the parameters that are kept, their gradients, the
        updates and the optimizer's state.
      norms: a pattern for those of the trained parameters whose norms, and those of their gradients, are
        among the metrics: `param_norm/layers/0/q`, `grad_norm/layers/0/q`. ".*" is all of them.
      idle: as of `Step`.
      compiler_options: as of `Step`.

    Returns:
      A `Step` of `TrainState`s. Its metrics are the loss's, `loss` itself and `grad_norm`, which is of the
      parameters that are trained, as `Mean`s and `Histogram`s on the device; and `skipped`, where the
      optimizer may skip updates.

    Raises:
      UsageError: `compute_dtype` is not a floating dtype, or `norms` is not a regular expression. When it is
        compiled: `optimizer` is or holds an `optax.MultiSteps`, and there are `microbatches`; or a pattern of
        `compute_dtype` or `norms` decides nothing.

    Example:
      >>> layout, optimizer = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.5)
      >>> state = mw.train.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer, 0, layout)
      >>> step = mw.make_step(lambda params, batch: (params["w"] - batch["y"]).mean() ** 2, optimizer, layout)
      >>> state, metrics = step(state, {"y": np.ones((8, 2), np.float32)})
      >>> print(state.params["w"])
      [0.5 0.5]
    """
    only, narrow, minimised = as_trainable(optimizer), narrowing(compute_dtype), objective(loss)
    norms_by_name = norms_of(norms)

    def step(state: TrainState, batch: PyTree) -> tuple[TrainState, Metrics]:
        check_accumulated_once(state.opt_state, microbatches)
        check_dtypes(compute_dtype, state.params)
        key = step_key(state)
        trained, frozen = only.split(state.params)

        def of_trained(trained: PyTree, model_state: PyTree, *rest: Any) -> Any:
            total, (metrics, new) = minimised(narrow(joined(trained, frozen)), model_state, *rest)
            return total, (metrics, only.updated(model_state, new))

        grads, metrics, model_state = mean_gradients(
            of_trained, trained, state.model_state, batch, key, microbatches
        )
        before = state.opt_state if only.opt_state_memory is None else on_devices(state.opt_state)
        with kept_complex():
            updates, opt_state = only.optimizer.update(grads, before, trained)
        params = joined(optax.apply_updates(trained, updates), frozen)
        norm = Mean(global_norm(grads), jnp.ones((), jnp.float32))
        metrics = {**metrics, "grad_norm": norm, **norms_by_name(trained, grads)}
        new = replace(state, step=state.step + 1, params=params, opt_state=opt_state, model_state=model_state)
        return new, with_skipped(metrics, updates, before, opt_state)

    return Step(
        step,
        layout,
        microbatches=microbatches,
        idle=idle,
        optimizer=optimizer,
        compiler_options=compiler_options,
    )


def _check_names(metrics: Mapping[str, Any]) -> None:
    taken = [name for name in metrics if name in REPORTED]
    if taken or not metrics:
        found = f"a metric called {taken[0]!r}, which a report has already" if taken else "no metric"
        raise UsageError(f"the step returned {found}.\n  Return at least one, such as 'loss'.")
