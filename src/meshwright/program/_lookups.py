"""Checks that the rows of tables that the first batch looks up exist, as tokens of another model's may not.

JAX takes the last row where an index is too large, without a word. So the traced step is followed, with the
arrays of the first batch as they are: an index counts that is computed from them alone, after all that the
loss does to it. One that it wraps, clips or replaces is within its table, and is fine.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.program._evaluate import bind, evaluate

_SAME = ("sharding_constraint", "reshard", "optimization_barrier", "copy")
_MOST_TURNS = 8
"""The number of turns of a loop over the batch, such as microbatches, that are followed."""


def check_lookups(jaxpr: Any, state: Any, batch: Any, rows: Any) -> None:
    """Check that the first batch looks up no row that a table of the state does not have.

    Args:
      jaxpr: The program. Its first inputs are the leaves of a state and of a batch.
      state: The state, as arrays or structs.
      batch: The batch, as arrays or structs.
      rows: Some rows of the batch. Of an array that is split over processes those of this one are taken.

    Raises:
      UsageError: It does.
    """
    names, structs = tree.leaf_names(state), jax.tree.leaves(batch)
    if not any(jnp.issubdtype(x.dtype, jnp.integer) for x in structs):
        return
    known = [
        cache(partial(_whole, struct, some)) if jnp.issubdtype(struct.dtype, jnp.integer) else None
        for struct, some in zip(structs, jax.tree.leaves(rows), strict=True)
    ]
    others = [None] * (len(_inner(jaxpr).invars) - len(names) - len(known))
    evaluate(jaxpr, [*names, *known, *others], _followed)


def _whole(struct: Any, rows: Any) -> np.ndarray:
    rows = rows.addressable_data(0) if isinstance(rows, jax.Array) else rows
    return np.resize(rows, struct.shape).astype(jax.dtypes.canonicalize_dtype(struct.dtype))


def _followed(eqn: Any, operands: list[Any]) -> Sequence[Any]:
    """Return the results of an equation, as far as they are known; check it if it is a lookup.

    An operand or result is a function that computes it, if it has integers that are known; otherwise the name
    of the state's array that it is made from, or None if the batch has a part in it.
    """
    kind, num_results = eqn.primitive.name, len(eqn.outvars)
    if kind == "gather" and isinstance(operands[0], str) and callable(operands[1]):
        _check(eqn, operands[0], np.asarray(operands[1]()))
    bodies = [x for x in eqn.params.values() if hasattr(_inner(x), "eqns")]
    if kind == "scan":
        _follow_turns(eqn, bodies[0], operands)
    elif bodies and kind not in ("while", "cond", "shard_map", "pallas_call"):
        body = _inner(bodies[0])
        if (len(body.invars), len(body.outvars)) == (len(operands), num_results):
            return evaluate(bodies[0], operands, _followed)
    elif all(not isinstance(x, str) and x is not None for x in operands) and _is_whole(eqn):
        if kind in _SAME:
            return operands
        made = cache(lambda: bind(eqn, [x() if callable(x) else x for x in operands]))
        return [lambda i=i: made()[i] for i in range(num_results)]
    names = [x for x in operands if isinstance(x, str)]
    is_of_batch = any(x is None or callable(x) for x in operands)
    return [None if is_of_batch or not names else names[0]] * num_results


def _inner(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _follow_turns(scan: Any, body: Any, operands: list[Any]) -> None:
    """Follow the turns of a loop, as many as the arrays of the batch in it differ in."""
    entering = zip(scan.invars, _inner(body).invars, strict=True)
    leaving = zip(scan.outvars, _inner(body).outvars, strict=True)
    num_whole, num_carried = (
        sum(len(x.aval.shape) == len(y.aval.shape) for x, y in ties) for ties in (entering, leaving)
    )
    begin = [x if i < num_whole - num_carried else None for i, x in enumerate(operands[:num_whole])]
    sliced = operands[num_whole:]
    turns = min(scan.params["length"], _MOST_TURNS) if any(map(callable, sliced)) else 1
    for turn in range(turns):
        now = [cache(lambda x=x, i=turn: x()[i]) if callable(x) else x for x in sliced]
        evaluate(body, [*begin, *now], _followed)


def _is_whole(eqn: Any) -> bool:
    dtypes = [x.aval.dtype for x in eqn.outvars]
    return all(jnp.issubdtype(dtype, jnp.integer) or dtype == jnp.bool_ for dtype in dtypes)


def _check(eqn: Any, table: str, indices: np.ndarray) -> None:
    """Raise an error if an index is outside of the table, unless the lookup says what it then gives."""
    params, shape = eqn.params, eqn.invars[0].aval.shape
    numbers, mode, fill = params["dimension_numbers"], params["mode"], params["fill_value"]
    is_mapped = mode == GatherScatterMode.CLIP and not numbers.collapsed_slice_dims  # by vmap
    is_nan = mode == GatherScatterMode.FILL_OR_DROP and isinstance(fill, float) and np.isnan(fill)
    if not (mode == GatherScatterMode.PROMISE_IN_BOUNDS or is_mapped or is_nan):
        return
    for part, dim in enumerate(numbers.start_index_map):
        index, size = indices[..., part], shape[dim]
        others = index[(index < 0) | (index > size - params["slice_sizes"][dim])]
        if others.size:
            raise UsageError(
                f"the first batch looks up row {others.flat[0]} of {table}, which has {size}, from 0 on.\n"
                "  Are these tokens, or numbers, of another model? If you mean it, say what such an index "
                'gives: table.at[ids].get(mode="clip").'
            )
