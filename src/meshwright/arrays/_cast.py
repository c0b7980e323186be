"""Casts, asked for by name: pairs of a pattern and a dtype, of which the first that matches decides.

Wherever a cast is made, while reading, saving or exporting, a number that does not fit is an error that names
it: one that would become infinite or none, or an integer that would become another.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from meshwright.errors import UsageError
from meshwright.patterns import OptionalPattern, Table, judge

Casts = Sequence[tuple[str, DTypeLike]]
"""Patterns for names, and dtypes. A floating dtype leaves arrays of integers as they are, and so on."""

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def cast_leaves(leaves: Mapping[str, Any], casts: Casts, also: Callable[[str], str] = str) -> dict[str, Any]:
    """Return named leaves, arrays of whatever sort or numbers, with those cast that `casts` say.

    `also` gives another name by which a pattern may call a leaf.

    Of arrays on devices all numbers are looked at now, which is collective; of lazy ones, when they are read.

    Raises:
      UsageError: A pattern casts nothing, or a number does not fit.
    """
    dtypes = cast_dtypes(leaves, casts, also) if casts else {}
    cast = {name: cast_leaf(name, leaves[name], dtype) for name, dtype in dtypes.items()}
    _check_on_devices({name: (leaves[name], x) for name, x in cast.items() if isinstance(x, jax.Array)})
    return {**leaves, **cast}


def cast_leaf(name: str, leaf: Any, dtype: np.dtype) -> Any:
    """Return an array of whatever sort, or a number, in another dtype.

    Raises:
      UsageError: A number of it does not fit. Of arrays on devices that is not looked at.
    """
    if isinstance(leaf, jax.Array):
        return leaf.astype(dtype)
    if hasattr(leaf, "with_values"):  # a lazy array
        return leaf.with_values(lambda block: converted(name, block, dtype), dtype)
    return converted(name, np.asarray(leaf), dtype)


def cast_dtypes(
    leaves: Mapping[str, Any], casts: Casts, also: Callable[[str], str] = str
) -> dict[str, np.dtype]:
    """Return the dtype of each leaf that is to be cast.

    Raises: as `cast_leaves`.
    """
    kinds, dtypes = (
        {name: _kind(leaf) for name, leaf in leaves.items()},
        [_dtype(given) for _, given in casts],
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
        raise UsageError(f"cast: nothing that {pattern!r} matches is of the kind of number that {dtype} is.")
    return {name: dtypes[number] for name, number in chosen.items()}


def floating(dtype: DTypeLike) -> np.dtype:
    """Return a dtype of floating-point numbers, which may be given by name.

    Raises:
      UsageError: It is none.
    """
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise UsageError(f"there is no dtype {dtype!r}; one is float32, or bfloat16.") from None
    if not jnp.issubdtype(found, jnp.floating):
        raise UsageError(f"cannot convert to {found.name}: it is not a dtype of floating-point numbers.")
    _refuse_without_nan(found)
    return found


def _refuse_without_nan(dtype: np.dtype) -> None:
    if np.isfinite(np.array(np.nan).astype(dtype)):
        raise UsageError(f"cannot convert to {dtype.name}: it has no NaN, and would hide what does not fit.")


def converted(name: str, block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a part of an array in another dtype.

    Raises:
      UsageError: A number does not fit.
    """
    if block.dtype == dtype:
        return block
    with np.errstate(over="ignore", invalid="ignore"):
        cast = block.astype(dtype)
        lost = _lost(np, block, cast)
    if lost.any():
        raise _does_not_fit(name, dtype, block[lost][0])
    return cast


def _check_on_devices(cast: Mapping[str, tuple[jax.Array, jax.Array]]) -> None:
    """Raise if a number of arrays on devices did not fit into what was made of them. Collective."""
    largest = {
        name: _largest_lost(*map(_near, pair))
        for name, pair in cast.items()
        if pair[0].dtype != pair[1].dtype
    }
    for name, number in jax.device_get(largest).items():  # all at once: each by itself would be waited for
        if number:
            raise _does_not_fit(name, cast[name][1].dtype, number)


def _near(x: jax.Array) -> jax.Array:
    """Return an array where its devices compute: one that is offloaded is in the host's memory."""
    near = next(iter(x.sharding.device_set)).default_memory().kind
    return x if x.sharding.memory_kind == near else jax.device_put(x, x.sharding.with_memory_kind(near))


@jax.jit
def _largest_lost(x: jax.Array, cast: jax.Array) -> jax.Array:
    """Return the magnitude of the largest number that did not fit; 0 where all did."""
    wide = jnp.promote_types(jnp.abs(x).dtype, jnp.float32)
    return jnp.max(jnp.where(_lost(jnp, x, cast), jnp.abs(x).astype(wide), 0), initial=0)


def _lost(of: Any, x: Any, cast: Any) -> Any:
    """Return where numbers did not fit, of arrays of NumPy or JAX."""
    if jnp.issubdtype(cast.dtype, jnp.inexact):
        return of.isfinite(x) & ~of.isfinite(cast)
    if jnp.issubdtype(cast.dtype, jnp.integer):
        whole = of.trunc(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return (cast.astype(x.dtype) != whole) | ((cast < 0) != (x < 0))
    return of.zeros(x.shape, bool)


def _does_not_fit(name: str, dtype: np.dtype, number: Any) -> UsageError:
    number = complex(number) if np.iscomplexobj(number) else float(number)
    return UsageError(f"cannot convert {name} to {dtype.name}: {number:g} does not fit.")


def dtype_of(leaf: Any) -> Any:
    """Return the dtype of an array, or that which a number has when it is saved."""
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _dtype(given: DTypeLike) -> np.dtype:
    try:
        found = np.dtype(given)
    except TypeError:
        raise UsageError(f"cast: there is no dtype {given!r}; one is float32, or bfloat16.") from None
    if jnp.issubdtype(found, jnp.floating):
        _refuse_without_nan(found)
    return found


def _kind(leaf: Any) -> Any:
    """Return the kind of number that a leaf holds; None where it holds something else, as keys."""
    if getattr(leaf, "key_impl", None):
        return None
    dtype = dtype_of(leaf)
    return next((kind for kind in _KINDS if jnp.issubdtype(dtype, kind)), None)
