"""Computing in a narrower dtype than the parameters are kept in."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.patterns import Table, judge, value_of
from meshwright.train._by_path import ByPath
from meshwright.tree import PyTree

ComputeDtype = DTypeLike | ByPath[DTypeLike | None] | None
"""A dtype for all parameters, or a table: `[("norm/.*", None), (".*", "bfloat16")]`. None keeps their own."""


def narrowing(compute_dtype: ComputeDtype) -> Callable[[PyTree], PyTree]:
    """Return the function that casts floating parameters that are wider than `compute_dtype` to it.

    The rest it leaves as it is.

    Raises:
      UsageError: something is no dtype, or none of floating numbers; a pattern is no regular expression.
    """
    rules = _rules(compute_dtype)
    Table.of("compute_dtype", rules)

    def one(name: str, x: jax.Array) -> jax.Array:
        dtype = value_of(rules, f"params/{name}", None)
        if dtype is None or not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x.astype(dtype) if x.dtype.itemsize > dtype.itemsize else x

    return lambda params: tree.map_named(one, params)


def narrowed(params: PyTree, compute_dtype: ComputeDtype) -> PyTree:
    """Return `params` as a loss is given them; see `narrowing`."""
    return narrowing(compute_dtype)(params)


def check_dtypes(compute_dtype: ComputeDtype, params: PyTree, name: str = "compute_dtype") -> None:
    """Check that each rule of a `ComputeDtype` decides something of `params`, which are all parameters.

    Args:
      name: what errors call it.

    Raises:
      UsageError: listing all rules that decide nothing; or as `narrowing`.
    """
    judge({Table.of(name, _rules(compute_dtype)): tree.leaf_names({"params": params})})


def wider_than(compute_dtype: ComputeDtype, batch: PyTree) -> str | None:
    """Return, for people, which arrays of a batch are wider than what is computed in; None if none are.

    A product is computed in the wider of its dtypes.
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
        f"{', '.join(wider)} of the batch {verb} wider than {narrowest}: what is multiplied with parameters "
        "as it comes is computed in the wider dtype; cast it in the loss"
    )


def _rules(compute_dtype: Any) -> list[tuple[str, jnp.dtype | None]]:
    """Return a `ComputeDtype` as pairs of a pattern and a dtype."""
    is_table = isinstance(compute_dtype, Sequence) and not isinstance(compute_dtype, str)
    rules = compute_dtype if is_table else [(".*", compute_dtype)]
    return [(pattern, _floating(dtype)) for pattern, dtype in rules]


def _floating(dtype: DTypeLike | None) -> jnp.dtype | None:
    """Return `dtype`, which may be a text such as "bfloat16", as a dtype."""
    if dtype is None:
        return None
    try:
        found = jnp.dtype(dtype)
    except TypeError:
        found = None
    if found is None or not jnp.issubdtype(found, jnp.floating):
        raise UsageError(
            f"compute_dtype={dtype!r} is no floating dtype. Use 'bfloat16', 'float16', 'float32', or None to "
            "compute in the parameters' own."
        )
    return found
