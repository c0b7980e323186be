"""Compute the loss in a narrower dtype than that of the stored parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshwright.base._internal import PyTree, Table, judge, tree, value_of
from meshwright.errors import UsageError
from meshwright.training._by_path import ByPath

ComputeDtype = DTypeLike | ByPath[DTypeLike | None] | None
"""A dtype for all parameters, or a table `[("norm/.*", None), (".*", "bfloat16")]`.

Parameters with None keep their own dtype.
"""


def narrowing(compute_dtype: ComputeDtype) -> Callable[[PyTree], PyTree]:
    """Return a function that casts parameters to `compute_dtype`.

    It casts only floating parameters that are wider than `compute_dtype`, and returns the others unchanged.
    """
    rules = _rules(compute_dtype)
    Table.of("compute_dtype", rules)

    def narrowed_leaf(name: str, x: jax.Array) -> jax.Array:
        dtype = value_of(rules, f"params/{name}", None)
        if dtype is None or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x.astype(dtype) if x.dtype.itemsize > dtype.itemsize else x

    return lambda params: tree.map_named(narrowed_leaf, params)


def check_dtypes(compute_dtype: ComputeDtype, params: PyTree, name: str = "compute_dtype") -> None:
    """Check that each rule of a `ComputeDtype` has an effect on at least one parameter."""
    judge({Table.of(name, _rules(compute_dtype)): tree.leaf_names({"params": params})})


def wider_than(compute_dtype: ComputeDtype, batch: PyTree) -> str | None:
    """Return a message about the arrays of a batch that are wider than `compute_dtype`, or None.

    The wider dtype matters because a product is computed in the wider dtype of its two factors.
    """
    dtypes = [dtype for _, dtype in _rules(compute_dtype) if dtype is not None]
    if not dtypes:
        return None
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize)
    wider = [
        name or "all"
        for name, x in tree.named_leaves(batch).items()
        if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize > narrowest.itemsize
    ]
    if not wider:
        return None
    verb = "is" if len(wider) == 1 else "are"
    return (
        f"{', '.join(wider)} of the batch {verb} wider than {narrowest}: products with the parameters are "
        "computed in the wider dtype; cast the arrays in the loss"
    )


def _rules(compute_dtype: Any) -> list[tuple[str, jnp.dtype | None]]:
    """Return a `ComputeDtype` as pairs of a pattern and a dtype."""
    is_table = isinstance(compute_dtype, Sequence) and not isinstance(compute_dtype, str)
    rules = compute_dtype if is_table else [(".*", compute_dtype)]
    return [(pattern, _floating(dtype)) for pattern, dtype in rules]


def _floating(dtype: DTypeLike | None) -> jnp.dtype | None:
    """Return `dtype`, which may be a string such as "bfloat16", as a dtype."""
    if dtype is None:
        return None
    try:
        floating = jnp.dtype(dtype)
    except TypeError:
        floating = None
    if floating is None or not jnp.issubdtype(floating, jnp.floating):
        raise UsageError(
            f"compute_dtype={dtype!r} is not a floating dtype. Use 'bfloat16', 'float16' or 'float32', or "
            "None to compute in the dtypes of the parameters."
        )
    return floating
