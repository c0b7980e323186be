"""A whole checkpoint as nested dictionaries, for those who have no tree to restore it into."""

from functools import partial
from typing import Any

import jax

from meshwright import tree
from meshwright.arrays._lazy import LazyArray
from meshwright.arrays._restore import restore
from meshwright.arrays._source import Source


def load(source: Source) -> dict[str, Any]:
    """Return all of `source` as nested dictionaries of NumPy arrays: lists and tuples too, by number.

    Typed PRNG keys are such. For other dtypes `cast` it before; integers stay as they are:
    `load(cast(source, [(".*", "bfloat16")]))`.

    Raises:
      InputError: A name lies below another, as `a/b` and `a` do in a file of names.
      DamagedError: A piece is damaged.
    """
    return restore(source, tree.nested({name: _struct(x) for name, x in source.arrays().items()}))


def load_lazily(source: Source) -> dict[str, Any]:
    """Return all of `source` as nested dictionaries of `LazyArray`s; nothing is read.

    Raises:
      InputError: A name lies below another.
    """
    return tree.nested(source.arrays())


def _struct(array: LazyArray) -> jax.ShapeDtypeStruct:
    struct = jax.ShapeDtypeStruct(array.shape, array.dtype)
    if array.key_impl is None:
        return struct
    return jax.eval_shape(partial(jax.random.wrap_key_data, impl=array.key_impl), struct)
