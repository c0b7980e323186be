"""Texts that say what a program takes, such as `int32[batch, length]`."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from meshwright.base._internal import tree
from meshwright.errors import UsageError

_TEXT = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<shape>[^\[\]]*)\]\s*")


def structs_of(inputs: tree.PyTree, constraints: Sequence[str]) -> tree.PyTree:
    """Return the structs of a program's inputs; a size with a name stands for any number."""
    try:
        scope = jax_export.SymbolicScope(constraints)
    except ValueError as error:
        raise UsageError(f"constraints={list(constraints)}: {error}") from None
    return tree.map_named(lambda name, given: _struct(name, given, scope), inputs)


def _struct(name: str, given: Any, scope: Any) -> jax.ShapeDtypeStruct:
    if not isinstance(given, str):
        return tree.abstract(given)
    found = _TEXT.fullmatch(given)
    try:
        if found is None:
            raise ValueError("there are no brackets")
        sizes = found["shape"].strip()
        shape = jax_export.symbolic_shape(sizes, scope=scope) if sizes else ()
        return jax.ShapeDtypeStruct(shape, jnp.dtype(found["dtype"]))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the input{f' {name}' if name else ''} is {given!r}, which is not a dtype and sizes, such as "
            f"'float32[batch, 28, 28]': {error}"
        ) from None


def told(structs: tree.PyTree) -> Any:
    """Return the text of a struct, or a dictionary with the text of each by name."""
    texts = {
        name: f"{jnp.dtype(x.dtype).name}[{', '.join(map(str, x.shape))}]"
        for name, x in tree.named_leaves(structs).items()
    }
    return texts[""] if texts.keys() == {""} else texts
