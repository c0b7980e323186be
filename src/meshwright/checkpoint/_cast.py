"""Casts, asked for by name: pairs of a pattern and a dtype, of which the first that matches decides."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from meshwright.checkpoint._patterns import first_matches
from meshwright.errors import UsageError

Casts = Sequence[tuple[str, DTypeLike]]
"""Patterns for whole names, and dtypes. A floating dtype leaves arrays of integers as they are, and so on."""

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def cast_leaves(leaves: Mapping[str, Any], casts: Casts, also: Callable[[str], str] = str) -> dict[str, Any]:
    """Return named leaves, arrays of whatever sort or numbers, with those cast that `casts` say.

    `also` gives another name by which a pattern may call a leaf.

    Raises:
      UsageError: A pattern casts nothing.
    """
    dtypes = cast_dtypes(leaves, casts, also) if casts else {}
    return {name: _cast(leaf, dtypes[name]) if name in dtypes else leaf for name, leaf in leaves.items()}


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
    decided = first_matches([pattern for pattern, _ in casts], numeric, also)
    chosen = {
        name: number for name, (number, _) in decided.items() if jnp.issubdtype(dtypes[number], kinds[name])
    }
    for number in set(range(len(casts))) - set(chosen.values()):
        pattern, dtype = casts[number][0], dtypes[number]
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
    if np.isfinite(np.array(np.nan).astype(found)):
        raise UsageError(f"cannot convert to {found.name}: it has no NaN, and would hide what does not fit.")
    return found


def converted(name: str, block: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a part of an array in another dtype.

    Raises:
      UsageError: A number becomes infinite by it, or none.
    """
    if block.dtype == dtype:
        return block
    with np.errstate(over="ignore", invalid="ignore"):
        cast = block.astype(dtype)
    if jnp.issubdtype(dtype, jnp.floating) and (lost := np.isfinite(block) & ~np.isfinite(cast)).any():
        number = float(block[lost][0])
        raise UsageError(f"cannot convert {name} to {dtype.name}: {number:g} does not fit.")
    return cast


def dtype_of(leaf: Any) -> Any:
    """Return the dtype of an array, or that which a number has when it is saved."""
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _dtype(given: DTypeLike) -> np.dtype:
    try:
        return np.dtype(given)
    except TypeError:
        raise UsageError(f"cast: there is no dtype {given!r}; one is float32, or bfloat16.") from None


def _cast(leaf: Any, dtype: np.dtype) -> Any:
    return leaf.astype(dtype) if hasattr(leaf, "astype") else np.asarray(leaf, dtype)


def _kind(leaf: Any) -> Any:
    """Return the kind of number that a leaf holds; None where it holds something else, as keys."""
    if getattr(leaf, "key_impl", None):
        return None
    dtype = dtype_of(leaf)
    return next((kind for kind in _KINDS if jnp.issubdtype(dtype, kind)), None)
