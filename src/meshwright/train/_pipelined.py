"""A loss over all microbatches at once, in which stacks of layers are pipelines.

The loss is traced for one microbatch. The trace runs for all of them side by side, and each of the axis'
devices computes some: embeddings, heads and all else outside the stacks. A stack of layers, as `mw.layers`
marks it, gets all microbatches together, and sends them through its stages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.errors import AxisError, LayoutError, UsageError
from meshwright.program import CALLS, bind, equations, evaluate, is_stack, jaxprs_in
from meshwright.sharding import MICROBATCH, PIPELINE, Layout, axes_of
from meshwright.train._ring import Ring, pipelined_scan
from meshwright.tree import PyTree

_CHECKPOINTS = ("checkpoint", "remat", "remat2")


def has_pipeline(layout: Layout) -> bool:
    """Return whether the mesh of a layout has several stages."""
    return layout.mesh.shape.get(PIPELINE, 1) > 1


def over_pipeline(
    objective: Callable[..., Any], layout: Layout, microbatches: int, pipeline_rounds: int
) -> Callable[..., Any]:
    """Return an `Objective` of a whole batch that sends its microbatches through pipelines.

    The total, the metrics and the keys are those of the microbatches one after the other.

    Args:
      objective: The objective of one microbatch.
      layout: The layout, whose mesh has the axis `pipeline`.
      microbatches: The number of microbatches.
      pipeline_rounds: How often each microbatch goes around the stages.

    Raises (when called):
      UsageError: The model has a state.
      LayoutError: The loss has no `mw.layers`, or has one where it cannot be a pipeline; or its layers do not
        divide over the stages.
    """
    ring = Ring(layout.mesh.shape[PIPELINE], microbatches, pipeline_rounds)

    def total(params: PyTree, model_state: PyTree, batch: PyTree, key: jax.Array) -> Any:
        if jax.tree.leaves(model_state):
            raise UsageError(
                "a model with a state cannot be trained on the axis 'pipeline': its microbatches are "
                "computed side by side, and each would need the state that the one before returned.\n"
                "  Give the devices to another axis, such as fsdp."
            )
        order = ring.order()
        rows = tuple(axis for axis in axes_of(layout.batch_sharding.spec[0]) if axis != PIPELINE)
        pieces = jax.tree.map(lambda x: _pieces(x, order % microbatches, microbatches, rows), batch)
        keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(order % microbatches))
        first = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), pieces)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), (params, model_state))
        traced, out = jax.make_jaxpr(objective, axis_env=[(MICROBATCH, ring.places)], return_shape=True)(
            *shapes, first, jax.eval_shape(lambda: key)
        )
        _check(traced)
        weights = jax.tree.leaves((params, model_state))

        def one(piece: PyTree, key: jax.Array) -> Any:
            leaves = evaluate(traced, [*weights, *jax.tree.leaves(piece), key], _stacks_by(ring))
            return jax.tree.unflatten(jax.tree.structure(out), leaves)

        found = jax.vmap(one, axis_name=MICROBATCH, spmd_axis_name=PIPELINE)(pieces, keys)
        is_real = order < microbatches
        return jax.tree.map(lambda x: jnp.where(_along(is_real, x), x, 0).sum(0), found)

    return total


def refuse_stacks(jaxpr: Any) -> None:
    """Check that no stack of layers is left in the program of a step.

    Raises:
      LayoutError: There is one, because the user wrote the update.
    """
    if any(map(is_stack, equations(jaxpr))):
        raise LayoutError(
            "mw.layers is a pipeline in the steps of `mw.make_step`, which also computes the gradients; in "
            "an update of your own it is not.\n  Use `mw.make_step`, or give the devices of the axis "
            "'pipeline' to another axis, such as fsdp."
        )


def _pieces(x: jax.Array, order: Any, microbatches: int, rows: tuple[str, ...]) -> jax.Array:
    """Return [B, ...] as microbatches, [places, rows, ...], in the order of the ring."""
    x = x.reshape(x.shape[0] // microbatches, microbatches, *x.shape[1:]).swapaxes(0, 1)[order]
    return jax.lax.with_sharding_constraint(x, P(PIPELINE, rows))


def _along(mask: Any, x: Any) -> Any:
    return jnp.asarray(mask).reshape(-1, *(1,) * (x.ndim - 1))


def _stacks_by(ring: Ring) -> Callable[[Any, list[Any]], Sequence[Any]]:
    """Return the function of an equation and its operands that makes pipelines of stacks of layers."""

    def results(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        if is_stack(eqn):
            return evaluate(eqn.params["jaxpr"], operands, in_stack)
        if not _has_stack(eqn):
            return bind(eqn, operands)
        inner = eqn.params["jaxpr"]
        if eqn.primitive.name in CALLS:
            return evaluate(inner, operands, results)
        return jax.checkpoint(
            lambda *inputs: evaluate(inner, inputs, results),
            policy=eqn.params["policy"],
            prevent_cse=eqn.params["prevent_cse"],
        )(*operands)

    def in_stack(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        return _pipeline(eqn, ring)(*operands) if eqn.primitive.name == "scan" else bind(eqn, operands)

    return results


def _pipeline(eqn: Any, ring: Ring) -> Callable[..., Any]:
    """Return a scan over layers of one microbatch, which for all of them together is a pipeline."""

    @jax.custom_batching.custom_vmap
    def scan(*operands: Any) -> Any:
        return list(bind(eqn, operands))

    @scan.def_vmap
    def rule(size: int, batched: Any, *operands: Any) -> Any:
        made = pipelined_scan(eqn, operands, batched, ring.microbatches, ring.rounds)
        return made, [True] * len(made)

    return scan


def _check(jaxpr: Any) -> None:
    if not any(map(is_stack, equations(jaxpr))):
        raise AxisError(
            "the mesh has the axis 'pipeline', but the loss has no layers that it could split into stages.\n"
            "  Call them by `mw.layers(block, stacked, x)`, in place of `jax.lax.scan`; or give the devices "
            "to another axis, such as fsdp.",
            PIPELINE,
        )
    for eqn in _unreachable(jaxpr):
        raise LayoutError(
            f"mw.layers is called inside a {eqn.primitive.name!r}, where it cannot be a pipeline.\n"
            "  Call it in the loss itself, or in functions under `jax.jit` or `jax.checkpoint`; or give the "
            "devices of the axis 'pipeline' to another axis."
        )


def _unreachable(jaxpr: Any) -> list[Any]:
    """Return equations that have a stack of layers inside, other than calls and checkpoints."""
    found = []
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if is_stack(eqn) or not _has_stack(eqn):
            continue
        if eqn.primitive.name not in (*CALLS, *_CHECKPOINTS):
            found.append(eqn)
        else:
            found += _unreachable(eqn.params["jaxpr"])
    return found


def _has_stack(eqn: Any) -> bool:
    return any(map(is_stack, (each for jaxpr in jaxprs_in(eqn.params) for each in equations(jaxpr))))
