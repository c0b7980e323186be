"""A loss over all microbatches at once, in which stacks of layers are pipelines.

The loss is traced for one microbatch. The trace runs for all of them side by side, and each of the axis'
devices computes some: embeddings, heads and all else outside the stacks. A stack of layers, as `mw.nn.layers`
marks it, gets all microbatches together, and sends them through its stages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree
from meshwright.errors import AxisError, LayoutError, UsageError
from meshwright.parallel._internal import MICROBATCH, PIPELINE, Layout, axes_of, elsewhere
from meshwright.program._internal import bind, evaluate, jaxprs, replacing
from meshwright.training._pipeline._cut import Cut, holds_stack
from meshwright.training._pipeline._one_forward_one_backward import loss_and_gradients
from meshwright.training._pipeline._ring import Ring, pipelined_scan
from meshwright.training._pipeline._schedule import OneForwardOneBackward, PipelineSchedule, check_schedule
from meshwright.training._pipeline._stage_arrays import along, over_microbatches


def has_pipeline(layout: Layout) -> bool:
    """Return whether the mesh of a layout has several stages."""
    return layout.num_stages > 1


def over_pipeline(
    layout: Layout, microbatches: int, pipeline_rounds: int, pipeline_schedule: PipelineSchedule
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the function of an `Objective` of one microbatch that makes one of a whole batch of it.

    It sends the microbatches through pipelines. The total, the metrics and the keys are those of the
    microbatches one after the other. Without the axis `pipeline`, objectives stay as they are.
    """
    check_schedule(pipeline_schedule, pipeline_rounds)
    if not has_pipeline(layout):
        return lambda objective: objective
    if pipeline_schedule == "1f1b":
        schedule = OneForwardOneBackward(layout.num_stages, microbatches)
        return lambda objective: _with_own_gradient(objective, layout, schedule)
    ring = Ring(layout.num_stages, microbatches, pipeline_rounds)
    return lambda objective: _all_forward(objective, layout, ring)


def _all_forward(objective: Callable[..., Any], layout: Layout, ring: Ring) -> Callable[..., Any]:
    """Return an `Objective` in which all microbatches go forward before one goes back."""
    order = ring.order()

    def total(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> Any:
        pieces = _pieces(batch, key, order, ring.microbatches, layout)
        traced, out = _traced(objective, (params, model_state), pieces, ring.places)
        weights = jax.tree.leaves((params, model_state))

        def of_piece(*piece: PyTree) -> Any:
            leaves = evaluate(traced, [*weights, *jax.tree.leaves(piece)], _stacks_by(ring))
            return jax.tree.unflatten(out, leaves)

        results = over_microbatches(of_piece)(*pieces)
        is_real = order < ring.microbatches
        return jax.tree.map(lambda x: jnp.where(along(is_real, x), x, 0).sum(0), results)

    return total


def _with_own_gradient(
    objective: Callable[..., Any], layout: Layout, schedule: OneForwardOneBackward
) -> Callable[..., Any]:
    """Return an `Objective` whose gradient is computed together with its value, by 1F1B."""
    without_gradient = _all_forward(objective, layout, Ring(schedule.stages, schedule.microbatches))
    order = np.arange(schedule.places).reshape(-1, schedule.stages)

    def total(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> Any:
        @jax.custom_vjp
        def value(params: PyTree) -> Any:
            return without_gradient(params, model_state, batch, key)

        def forward(params: PyTree) -> tuple[Any, list[Any]]:
            pieces = _pieces(batch, key, order, schedule.microbatches, layout)
            firsts = jax.tree.map(lambda x: x[0], pieces)
            traced, out = _traced(objective, (params, model_state), firsts, schedule.stages)
            weights = jax.tree.leaves(params)
            cut = Cut(traced, len(weights), schedule.stages)
            leaves, gradients = loss_and_gradients(cut, weights, jax.tree.leaves(pieces), schedule)
            return jax.tree.unflatten(out, leaves), gradients

        def backward(gradients: list[Any], cotangent: Any) -> tuple[PyTree]:
            scaled = [None if x is None else (x * cotangent[0]).astype(x.dtype) for x in gradients]
            return (jax.tree.unflatten(jax.tree.structure(params), scaled),)

        value.defvjp(forward, backward)
        return value(params)

    return total


def _traced(objective: Callable[..., Any], state: PyTree, pieces: PyTree, places: int) -> tuple[Any, Any]:
    """Return the jaxpr of the objective of one microbatch, and the structure of its results."""
    if jax.tree.leaves(state[1]):
        raise UsageError(
            f"a model with a state cannot be trained on the axis {PIPELINE!r}: its microbatches are "
            "computed side by side, and each would need the state that the one before returned.\n"
            f"  {elsewhere(PIPELINE).capitalize()}."
        )
    first = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], pieces))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), state)
    traced, out = jax.make_jaxpr(objective, axis_env=[(MICROBATCH, places)], return_shape=True)(
        *shapes, *first
    )
    _check(traced)
    return traced, jax.tree.structure(out)


def refuse_stacks(jaxpr: Any) -> None:
    """Check that no stack of layers is left in the program of a step."""
    if any(map(jaxprs.is_stack, jaxprs.equations(jaxpr))):
        raise LayoutError(
            "mw.nn.layers is a pipeline in the steps of `mw.make_step`, which also computes the gradients; "
            f"in an update of your own it is not.\n  Use `mw.make_step`, or {elsewhere(PIPELINE)}."
        )


def _pieces(batch: PyTree, key: jax.Array, order: Any, microbatches: int, layout: Layout) -> tuple[Any, Any]:
    """Return the rows and the keys of microbatches in some order, whose last dimension is split over stages.

    [B, ...] becomes [*order, rows, ...]. Places after the last microbatch get the first ones again.
    """
    rows = tuple(axis for axis in axes_of(layout.batch_sharding.spec[0]) if axis != PIPELINE)
    split, microbatch_of = P(*(None,) * (order.ndim - 1), PIPELINE, rows), order % microbatches

    def of_rows(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)[microbatch_of]
        return jax.lax.with_sharding_constraint(x, split)

    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(microbatch_of.reshape(-1)))
    return jax.tree.map(of_rows, batch), keys.reshape(order.shape)


def _stacks_by(ring: Ring) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return the function of an equation and its operands that makes pipelines of stacks of layers."""

    def in_stack(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        return _pipeline(eqn, ring)(*operands) if jaxprs.is_scan(eqn) else bind(eqn, operands)

    def results(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if jaxprs.is_stack(eqn):
            return evaluate(jaxprs.body_of(eqn), operands, in_stack)
        body = jaxprs.body_of(eqn)
        again = jax.checkpoint(lambda *inputs: evaluate(body, inputs, pipelined), **jaxprs.settings_of(eqn))
        return again(*operands)

    pipelined = replacing(holds_stack, results)
    return pipelined


def _pipeline(eqn: Any, ring: Ring) -> Callable[..., Any]:
    """Return a scan over layers of one microbatch, which for all of them together is a pipeline."""

    @jax.custom_batching.custom_vmap
    def scan(*operands: Any) -> Any:
        return list(bind(eqn, operands))

    @scan.def_vmap
    def rule(size: int, batched: Any, *operands: Any) -> Any:
        results = pipelined_scan(eqn, operands, batched, ring.microbatches, ring.rounds)
        return results, [True] * len(results)

    return scan


def _check(jaxpr: Any) -> None:
    if not any(map(jaxprs.is_stack, jaxprs.equations(jaxpr))):
        raise AxisError(
            f"the mesh has the axis {PIPELINE!r}, but the loss has no layers that it could split into "
            "stages.\n  Call them by `mw.nn.layers(block, stacked, x)`, in place of `jax.lax.scan`; or "
            f"{elsewhere(PIPELINE)}.",
            PIPELINE,
        )
    for eqn in _unreachable(jaxpr):
        raise LayoutError(
            f"mw.nn.layers is called inside a {eqn.primitive.name!r}, where it cannot be a pipeline.\n"
            "  Call it in the loss itself, or in functions under `jax.jit` or `jax.checkpoint`; or "
            f"{elsewhere(PIPELINE)}."
        )


def _unreachable(jaxpr: Any) -> list[Any]:
    """Return equations that have a stack of layers inside, other than calls and checkpoints."""
    unreachable = []
    for eqn in jaxprs.opened(jaxpr).eqns:
        if jaxprs.is_stack(eqn) or not jaxprs.holds(eqn, jaxprs.is_stack):
            continue
        is_open = jaxprs.is_call(eqn) or jaxprs.is_checkpoint(eqn)
        unreachable += _unreachable(jaxprs.body_of(eqn)) if is_open else [eqn]
    return unreachable
