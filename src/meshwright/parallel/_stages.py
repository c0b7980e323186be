"""A stack of layers that is split over the axis `pipeline`, in programs that are no pipelines.

Evaluations and predictions compute a whole batch at once, of which each device along the axis has a part. So
each layer goes to all of them when it is needed, as under fsdp. XLA would send all layers at once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.errors import AxisError
from meshwright.parallel._activations import stage_ways
from meshwright.parallel._axes import PIPELINE
from meshwright.program._internal import bind, evaluate, jaxprs


def layer_by_layer(eqn: Any) -> Callable[..., list[Any]]:
    """Return the call of `mw.nn.layers`, an equation, as a function that sends one layer at a time."""

    def results(inner: Any, operands: list[Any]) -> Sequence[Any]:
        scan = jaxprs.scan_of(inner) if jaxprs.is_scan(inner) else None
        return _scanned(scan, operands) if scan and scan.turns.step > 0 else bind(inner, operands)

    return lambda *operands: evaluate(jaxprs.body_of(eqn), operands, results)


def _scanned(scan: jaxprs.Scan, operands: list[Any]) -> list[Any]:
    length, consts = len(scan.turns), operands[: scan.num_consts]
    stages = stage_ways()
    layers_of_stage(length, stages)
    fetched = [_stacked(x, stages) for x in operands[scan.num_whole :]]

    def one(carry: list[Any], at: Any) -> tuple[list[Any], list[Any]]:
        results = evaluate(scan.body, [*consts, *carry, *(fetch(at) for fetch in fetched)], bind)
        return results[: scan.num_carry], results[scan.num_carry :]

    carry, aux = jax.lax.scan(one, operands[scan.num_consts : scan.num_whole], jnp.arange(length))
    return [*carry, *aux]


def _stacked(x: Any, count: int) -> Callable[[Any], Any]:
    """Return the function of a number that sends one of the layers `x`, [L, ...], to all devices."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) and x.ndim > 1):
        return lambda at: jax.lax.dynamic_index_in_dim(x, at, keepdims=False)
    num_layers = x.shape[0] // count
    stages = split_over_stages(x.reshape(count, num_layers, *x.shape[1:]))

    def fetched(at: Any) -> Any:
        mine = jax.lax.dynamic_index_in_dim(stages, at % num_layers, 1, keepdims=False)
        is_there = (jnp.arange(count) == at // num_layers).reshape(-1, *(1,) * (mine.ndim - 1))
        return jnp.where(is_there, mine, 0).sum(0, dtype=x.dtype)

    return fetched


def split_over_stages(x: jax.Array) -> jax.Array:
    """Return an array whose first dimension is split over the stages, and others as XLA likes."""
    return jax.lax.with_sharding_constraint(x, P(PIPELINE, *(P.UNCONSTRAINED,) * (x.ndim - 1)))


def layers_of_stage(num_layers: int, stages: int, rounds: int = 1) -> int:
    """Return the number of layers of a stage, or raise an `AxisError` if they do not divide."""
    if num_layers % (stages * rounds):
        of_each = f" × {rounds} rounds" if rounds > 1 else ""
        raise AxisError(
            f"{num_layers} layers do not divide into {stages * rounds} stages ({PIPELINE}={stages}{of_each})."
            "\n  Change the size of the axis, the rounds or the number of layers.",
            PIPELINE,
        )
    return num_layers // (stages * rounds)
