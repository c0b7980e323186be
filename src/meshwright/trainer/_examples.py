"""Looks at examples and batches, before there are many of them."""

from collections.abc import Mapping
from typing import Any

import jax

from meshwright import tree
from meshwright.input import as_source
from meshwright.tree import PyTree


def structs_of(rows: PyTree, batch_size: int) -> PyTree:
    """Return the structs of a global batch, given some rows of it."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((batch_size, *x.shape[1:]), jax.dtypes.canonicalize_dtype(x.dtype)),
        tree.abstract(rows),
    )


def head(examples: Any, num_examples: int) -> Any:
    """Return the first examples, in the form that all are in."""
    if isinstance(examples, Mapping):
        return jax.tree.map(lambda x: x[:num_examples], dict(examples))
    source = as_source(examples)
    return [source[i] for i in range(min(num_examples, len(source)))]
