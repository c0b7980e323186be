"""A run's randomness: keys from its seed, of one kind whatever JAX's default is when it is continued."""

from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from meshwright.errors import UsageError

_IMPL = "threefry2x32"
"""Its numbers are the same on all platforms, as the documentation of `jax.random` says."""


def as_seed(given: Any, name: str = "seed") -> int:
    """Return a seed, a whole number from 0 to 2**32 - 1.

    Raises:
      UsageError: It is none.
    """
    if not isinstance(given, int | np.integer) or not 0 <= given < 2**32:
        raise UsageError(f"{name}={given!r}: it must be a whole number from 0 to 2**32 - 1.")
    return int(given)


def key_of(seed: ArrayLike) -> jax.Array:
    """Return the PRNG key of a seed, 0 to 2**32 - 1.

    `jax_default_prng_impl` has no say: what a run draws, and the types of keys in its state, would change
    with it between a run and its continuation. Where `rbg` is wanted, which is faster on TPUs, make such a
    key of the one that is given: `jax.random.wrap_key_data(jax.random.bits(key, (4,)), impl="rbg")`.
    """
    return jax.random.key(seed, impl=_IMPL)


def step_key(state: Any) -> jax.Array:
    """Return the key of the next update of `state`, which has a `seed` and a `step`."""
    return jax.random.fold_in(key_of(state.seed), state.step)
