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
from meshwright.parallel._layout import PIPELINE
from meshwright.program._internal import bind, evaluate, jaxprs


def layer_by_layer(eqn: Any) -> Callable[..., list[Any]]:
    """Return the call of `mw.nn.layers`, an equation, as a function that sends one layer at a time."""

    def results(inner: Any, operands: list[Any]) -> Sequence[Any]:
        scan = jaxprs.scan_of(inner) if jaxprs.is_scan(inner) else None
        return _scanned(scan, operands) if scan and scan.turns.step > 0 else bind(inner, operands)

    return lambda *operands: evaluate(jaxprs.body_of(eqn), operands, results)


def _scanned(scan: jaxprs.Scan, operands: list[Any]) -> list[Any]:
    length, consts = len(scan.turns), operands[: scan.num_consts]
    num_stages = jax.sharding.get_abstract_mesh().shape[PIPELINE]
    if length % num_stages:
        raise AxisError(indivisible(length, num_stages), PIPELINE)
    fetched = [_stacked(x, num_stages) for x in operands[scan.num_whole :]]

    def one(carry: list[Any], at: Any) -> tuple[list[Any], list[Any]]:
        results = evaluate(scan.body, [*consts, *carry, *(fetch(at) for fetch in fetched)], bind)
        return results[: scan.num_carry], results[scan.num_carry :]

    carry, aux = jax.lax.scan(one, operands[scan.num_consts : scan.num_whole], jnp.arange(length))
    return [*carry, *aux]


def _stacked(x: Any, num_stages: int) -> Callable[[Any], Any]:
    """Return the function of a number that sends one of the layers `x`, [L, ...], to all devices."""
    if not (jnp.issubdtype(x.dtype, jnp.floating) and x.ndim > 1):
        return lambda at: jax.lax.dynamic_index_in_dim(x, at, keepdims=False)
    num_layers = x.shape[0] // num_stages
    stages = x.reshape(num_stages, num_layers, *x.shape[1:])
    spec = P(PIPELINE, *(P.UNCONSTRAINED,) * (stages.ndim - 1))
    stages = jax.lax.with_sharding_constraint(stages, spec)

    def fetched(at: Any) -> Any:
        mine = jax.lax.dynamic_index_in_dim(stages, at % num_layers, 1, keepdims=False)
        is_there = (jnp.arange(num_stages) == at // num_layers).reshape(-1, *(1,) * (mine.ndim - 1))
        return jnp.where(is_there, mine, 0).sum(0, dtype=x.dtype)

    return fetched


def indivisible(num_layers: int, num_stages: int, rounds: int = 1) -> str:
    """Return the message about layers that do not divide over the stages."""
    of_each = f" × {rounds} rounds" if rounds > 1 else ""
    return (
        f"{num_layers} layers do not divide into {num_stages * rounds} stages "
        f"(pipeline={num_stages}{of_each}).\n"
        "  Change the size of the axis, the rounds or the number of layers."
    )
