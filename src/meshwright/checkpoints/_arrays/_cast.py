"""The form in which leaves are saved: casts by name, and typed PRNG keys as data.

A cast is a pair of a pattern and a dtype; the first pattern that matches decides. A value that the new dtype
cannot hold is an error that names the array, whether the cast is made while reading, saving or exporting: a
finite number that would become infinite or NaN, or an integer that would change.

PRNG keys are saved as their uint32 data and the name of their implementation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from meshwright.base._internal import OptionalPattern, Table, judge
from meshwright.errors import UsageError

Casts = Sequence[tuple[str, DTypeLike]]
"""Pairs of a pattern for names and a dtype. A floating-point dtype casts floating-point arrays only, an
integer dtype integers only, and so on."""

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def cast_leaves(leaves: Mapping[str, Any], casts: Casts, also: Callable[[str], str] = str) -> dict[str, Any]:
    """Return named leaves with those cast that `casts` match.

    Values of arrays on devices are checked now, which is collective; those of lazy arrays, when they are
    read.
    """
    dtypes = cast_dtypes(leaves, casts, also) if casts else {}
    cast = {name: cast_leaf(name, leaves[name], dtype) for name, dtype in dtypes.items()}
    _check_on_devices({name: (leaves[name], x) for name, x in cast.items() if isinstance(x, jax.Array)})
    return {**leaves, **cast}


def cast_leaf(name: str, leaf: Any, dtype: np.dtype) -> Any:
    """Return one leaf in another dtype."""
    if isinstance(leaf, jax.Array):
        return leaf.astype(dtype)
    # A lazy array. Importing the class here would be a circle, as lazy arrays use `converted`.
    if hasattr(leaf, "with_values"):  # a lazy array
        return leaf.with_values(lambda block: converted(name, block, dtype), dtype)
    return converted(name, np.asarray(leaf), dtype)


def cast_dtypes(
    leaves: Mapping[str, Any], casts: Casts, also: Callable[[str], str] = str
) -> dict[str, np.dtype]:
    """Return the new dtype of each leaf that `casts` match, by name."""
    kinds, dtypes = (
        {name: _kind(leaf) for name, leaf in leaves.items()},
        [_dtype(target) for _, target in casts],
    )
    numeric = [name for name, kind in kinds.items() if kind]
    table = Table.of("cast", casts)
    judge({table: numeric}, also)
    first = {name: number for name, (number, _) in table.decisions(numeric, also).items()}
    chosen = {name: number for name, number in first.items() if jnp.issubdtype(dtypes[number], kinds[name])}
    for number in sorted(set(first.values()) - set(chosen.values())):
        pattern, dtype = casts[number][0], dtypes[number]
        if isinstance(pattern, OptionalPattern):
            continue
        raise UsageError(
            f"cast: {pattern!r} matches no array that can be cast to {dtype}: the kinds of numbers differ, "
            "floating-point or integer. Give a dtype of their kind, or another pattern."
        )
    return {name: dtypes[number] for name, number in chosen.items()}


def floating(dtype: DTypeLike) -> np.dtype:
    """Return `dtype` as a NumPy dtype, if it is a floating-point dtype."""
    try:
        target = np.dtype(dtype)
    except TypeError:
        raise UsageError(f"there is no dtype {dtype!r}. Give, say, float32 or bfloat16.") from None
    if not jnp.issubdtype(target, jnp.floating):
        raise UsageError(f"cannot convert to {target.name}: it is not a floating-point dtype.")
    _refuse_without_nan(target)
    return target


def _refuse_without_nan(dtype: np.dtype) -> None:
    if np.isfinite(np.array(np.nan).astype(dtype)):
        raise UsageError(
            f"cannot convert to {dtype.name}: it has no NaN, so values that do not fit would go unnoticed."
        )


def converted(name: str, block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a part of an array in another dtype."""
    if block.dtype == dtype:
        return block
    with np.errstate(over="ignore", invalid="ignore"):
        cast = block.astype(dtype)
        lost = _lost(np, block, cast)
    if lost.any():
        raise _does_not_fit(name, dtype, block[lost][0])
    return cast


def _check_on_devices(cast: Mapping[str, tuple[jax.Array, jax.Array]]) -> None:
    """Raise if a value of an array on devices did not fit into its cast; takes pairs of both. Collective."""
    largest = {
        name: _largest_lost(*map(_near, pair))
        for name, pair in cast.items()
        if pair[0].dtype != pair[1].dtype
    }
    # One transfer for all arrays: with one each, the host would wait each time.
    for name, number in jax.device_get(largest).items():
        if number:
            raise _does_not_fit(name, cast[name][1].dtype, number)


def _near(x: jax.Array) -> jax.Array:
    """Return an array in the devices' own memory; an offloaded one lies in the host's memory."""
    near = next(iter(x.sharding.device_set)).default_memory().kind
    return x if x.sharding.memory_kind == near else jax.device_put(x, x.sharding.with_memory_kind(near))


@jax.jit
def _largest_lost(x: jax.Array, cast: jax.Array) -> jax.Array:
    """Return the largest magnitude of the values that did not fit; 0 if all did."""
    wide = jnp.promote_types(jnp.abs(x).dtype, jnp.float32)
    return jnp.max(jnp.where(_lost(jnp, x, cast), jnp.abs(x).astype(wide), 0), initial=0)


def _lost(numpy: Any, x: Any, cast: Any) -> Any:
    """Return a mask of the values that did not fit; `numpy` is the module of the arrays, np or jnp."""
    if jnp.issubdtype(cast.dtype, jnp.inexact):
        return numpy.isfinite(x) & ~numpy.isfinite(cast)
    if jnp.issubdtype(cast.dtype, jnp.integer):
        whole = numpy.trunc(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        # The signs are compared, too: an unsigned integer that wraps round is equal again when it is cast
        # back.
        return (cast.astype(x.dtype) != whole) | ((cast < 0) != (x < 0))
    return numpy.zeros(x.shape, bool)


def _does_not_fit(name: str, dtype: np.dtype, number: Any) -> UsageError:
    number = complex(number) if np.iscomplexobj(number) else float(number)
    return UsageError(f"cannot convert {name} to {dtype.name}: {number:g} does not fit.")


def dtype_of(leaf: Any) -> Any:
    """Return the dtype of an array, or the dtype in which a Python number is saved."""
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _dtype(name: DTypeLike) -> np.dtype:
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise UsageError(f"cast: there is no dtype {name!r}. Give one such as float32 or bfloat16.") from None
    if jnp.issubdtype(dtype, jnp.floating):
        _refuse_without_nan(dtype)
    return dtype


def _kind(leaf: Any) -> Any:
    """Return the kind of numbers in a leaf; None if it holds something else, such as PRNG keys."""
    if getattr(leaf, "key_impl", None):
        return None
    dtype = dtype_of(leaf)
    return next((kind for kind in _KINDS if jnp.issubdtype(dtype, kind)), None)


def is_key(leaf: Any) -> bool:
    """Return whether `leaf` is an array, or a struct, of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def key_type(leaf: Any) -> tuple[str, tuple[int, ...]]:
    """Return the implementation of typed keys, which may be a struct, and the shape of their data."""
    impls: list[str] = []

    def data(keys: jax.Array) -> jax.Array:
        # `key_impl` needs an array, which a tracer is and a struct is not.
        impls.append(str(jax.random.key_impl(keys)))
        return jax.random.key_data(keys)

    shape = jax.eval_shape(data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)).shape
    return impls[0], shape


def type_name(leaf: Any) -> str:
    """Return the name of an array's dtype for messages; typed keys have `key<threefry2x32>`."""
    return f"key<{key_type(leaf)[0]}>" if is_key(leaf) else leaf.dtype.name


def keys_as_data(leaves: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the leaves with PRNG keys replaced by their data, and by name the keys' implementations."""
    typed = {name: leaf for name, leaf in leaves.items() if is_key(leaf)}
    impls = {name: leaf.key_impl for name, leaf in leaves.items() if getattr(leaf, "key_impl", None)}
    data = {name: jax.random.key_data(leaf) for name, leaf in typed.items()}
    return {**leaves, **data}, impls | {name: key_type(leaf)[0] for name, leaf in typed.items()}


def saved_structs(leaves: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shapes that leaves have when they are saved, as structs with shardings; numbers stay."""

    def struct(name: str, leaf: Any) -> Any:
        if is_key(leaf):
            return jax.ShapeDtypeStruct(key_type(leaf)[1], "uint32")
        if not hasattr(leaf, "dtype"):
            return leaf
        sharding = getattr(leaf, "sharding", None)
        return jax.ShapeDtypeStruct(leaf.shape, dtypes.get(name, leaf.dtype), sharding=sharding)

    return {name: struct(name, leaf) for name, leaf in leaves.items()}
