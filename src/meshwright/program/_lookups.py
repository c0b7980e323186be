"""Checks that the rows of tables that the first batch looks up exist, as tokens of another model's may not.

JAX takes the last row where an index is too large, without a word. So the traced step is followed, with the
arrays of the first batch as they are: an index counts that is computed from them alone, after all that the
loss does to it. One that it wraps, clips or replaces is within its table, and is fine. So are rows that it
replaces, or multiplies with 0, by what it computes from the batch alone: padding, and labels of -100.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import jax
import numpy as np
from jax.lax import GatherScatterMode

from meshwright.base._internal import tree
from meshwright.errors import UsageError
from meshwright.program import _jaxprs as jaxprs
from meshwright.program._evaluate import bind, evaluate
from meshwright.program._primitives import Algebra, primitive_of

_MOST_TURNS = 8
"""The number of turns of a loop over the batch, such as microbatches, that are followed."""


def check_lookups(jaxpr: Any, state: Any, batch: Any, rows: Any) -> None:
    """Check that the first batch looks up no row that a table of the state does not have."""
    names, leaves = tree.leaf_names(state), zip(*map(jax.tree.leaves, (batch, rows)), strict=True)
    batch_values = [cache(partial(_whole, struct, some)) for struct, some in leaves]
    others = [None] * (len(jaxprs.opened(jaxpr).invars) - len(names) - len(batch_values))
    missing, masks = [], []
    evaluate(jaxpr, [*names, *batch_values, *others], partial(_followed, missing, masks))
    for is_missing, row, table, size in missing:
        if not any(_removes(mask, is_missing) for mask in masks):
            raise UsageError(
                f"the first batch looks up row {row} of {table}, which has {size}, from 0 on.\n"
                "  Are these tokens, or numbers, of another model? If you mean it, mask what they give with "
                f"jnp.where, or bound them: jnp.clip(ids, 0, {size - 1})."
            )


def _whole(struct: Any, rows: Any) -> np.ndarray:
    rows = rows.addressable_data(0) if isinstance(rows, jax.Array) else rows
    return np.resize(rows, struct.shape).astype(jax.dtypes.canonicalize_dtype(struct.dtype))


def _followed(missing: list, masks: list, eqn: Any, operands: list[Any]) -> Sequence[Any]:
    """Return the results of an equation, as far as they are known; note lookups of rows that a table lacks.

    An operand or result is a function that computes it, if it is made from the batch alone; the name of the
    state's array that it is made from; or None if both have a part in it. A constant may be an array.
    """
    num_results, follow = len(eqn.outvars), partial(_followed, missing, masks)
    kind = eqn.primitive.name
    primitive, is_mixed = primitive_of(kind), [x is None for x in operands]
    if kind == "gather" and isinstance(operands[0], str) and callable(operands[1]):
        # An index that cannot be computed here is not known.
        with suppress(Exception):
            missing += _missing(eqn, operands[0], np.asarray(operands[1]()))
    elif kind == "select_n" and callable(operands[0]) and any(is_mixed):
        masks.append(lambda: ~np.array(is_mixed[1:])[np.asarray(operands[0]()).astype(int)])
    elif primitive.algebra in (Algebra.MULTIPLIED, Algebra.PRODUCT) and any(is_mixed):
        masks += [lambda x=x: np.asarray(x()) == 0 for x in operands if callable(x)]
    if jaxprs.is_scan(eqn):
        _follow_turns(eqn, operands, follow)
    elif call := jaxprs.called(eqn):
        return evaluate(call.jaxpr, [operands[i] for i in call.operands], follow)
    elif all(map(_is_known, operands)):
        if primitive.algebra is Algebra.SAME:
            return operands
        values = cache(lambda: bind(eqn, [x() if callable(x) else x for x in operands]))
        return [lambda i=i: values()[i] for i in range(num_results)]
    names = [x for x in operands if isinstance(x, str)]
    is_of_batch = any(is_mixed) or any(map(callable, operands))
    return [None if is_of_batch or not names else names[0]] * num_results


def _is_known(operand: Any) -> bool:
    return operand is not None and not isinstance(operand, str)


def _follow_turns(eqn: Any, operands: list[Any], follow: Callable[..., Any]) -> None:
    """Follow the turns of a loop, as many as the arrays of the batch in it differ in."""
    scan = jaxprs.scan_of(eqn)
    begin = [x if i < scan.num_consts else None for i, x in enumerate(operands[: scan.num_whole])]
    sliced = operands[scan.num_whole :]
    turns = min(len(scan.turns), _MOST_TURNS) if any(map(callable, sliced)) else 1
    for i in range(turns):
        part = lambda x, i=i: cache(lambda: (x() if callable(x) else x)[i])  # noqa: E731
        slices = [part(x) if _is_known(x) else x for x in sliced]
        evaluate(scan.body, [*begin, *slices], follow)


def _missing(eqn: Any, table: str, indices: np.ndarray) -> Iterator[Any]:
    """Yield a mask of the indices that a table lacks, one of them and its size, unless JAX replaces them."""
    params, shape = eqn.params, eqn.invars[0].aval.shape
    numbers, mode, fill = params["dimension_numbers"], params["mode"], params["fill_value"]
    # `vmap` makes lookups that clip and collapse no dimension.
    is_mapped = mode == GatherScatterMode.CLIP and not numbers.collapsed_slice_dims
    is_nan = mode == GatherScatterMode.FILL_OR_DROP and isinstance(fill, float) and np.isnan(fill)
    if not (mode == GatherScatterMode.PROMISE_IN_BOUNDS or is_mapped or is_nan):
        return
    for part, dim in enumerate(numbers.start_index_map):
        index, size = indices[..., part], shape[dim]
        is_missing = (index < 0) | (index > size - params["slice_sizes"][dim])
        if is_missing.any():
            yield is_missing, index[is_missing][0], table, size


def _removes(mask: Callable[[], Any], is_missing: np.ndarray) -> bool:
    """Return whether a mask, true where it removes values, removes those of all missing rows."""
    # A mask that cannot be computed here is not known.
    with suppress(Exception):
        removed, shape = mask(), is_missing.shape
        if removed.size == is_missing.size or removed.shape[: len(shape)] == shape:
            return bool(removed.reshape(*shape, -1)[is_missing].all())
    return False
