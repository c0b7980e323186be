"""A run's randomness: keys from its seed, of one kind whatever JAX's default is when it is continued."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from meshwright.arguments import num_positional
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


def with_key(step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return an update as `(state, batch)`. If it takes a third argument, that is the key of the step.

    Raises (when called):
      UsageError: it takes a key, and its state has nothing to draw it from.
    """
    if num_positional(step, "step function") < 3:
        return step

    def keyed(state: Any, batch: Any) -> Any:
        missing = [name for name in ("seed", "step") if not hasattr(state, name)]
        if missing:
            raise UsageError(
                f"the step function takes a key as its third argument, and its state has no {missing[0]!r} "
                "to draw it from.\n  Give the state the fields `seed`, uint32[], and `step`, int32[], as a "
                "TrainState has; or take (state, batch) alone."
            )
        return step(state, batch, step_key(state))

    return keyed
