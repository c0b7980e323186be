"""The PRNG keys of a run. Their kind is fixed, so that JAX's default cannot change it at a restart."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from meshwright.base._internal import in_order
from meshwright.errors import UsageError

_IMPL = "threefry2x32"
"""Its numbers are the same on all platforms, as the documentation of `jax.random` says."""


def as_seed(seed: Any, name: str = "seed") -> int:
    """Return a seed as an int, having checked that it is from 0 to 2**32 - 1."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise UsageError(f"{name}={seed!r}: it must be a whole number from 0 to 2**32 - 1.")
    return int(seed)


def key_of(seed: ArrayLike) -> jax.Array:
    """Return the PRNG key of a seed, 0 to 2**32 - 1.

    `jax_default_prng_impl` is ignored, because a change of it between a run and its restart would change the
    random numbers and the types of keys in the state. For `rbg`, which is faster on TPUs, derive a key from
    this one: `jax.random.wrap_key_data(jax.random.bits(key, (4,)), impl="rbg")`. On the mesh axis `pipeline`
    such keys draw other numbers than without it, as under `jax.vmap`.

    Example:
      >>> print(jax.random.uniform(mw.training.key_of(0)))
      0.947667
    """
    return jax.random.key(seed, impl=_IMPL)


def step_key(state: Any) -> jax.Array:
    """Return the key of the next update of `state`, which has a `seed` and a `step`."""
    return jax.random.fold_in(key_of(state.seed), state.step)


def with_key(step: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return the update as a function `(state, batch)`. A third parameter gets the key of the step."""
    names = ("state", "batch", "key")
    call = in_order(step, dict.fromkeys(names), "step function", optional="key")
    if len(call.args) + len(call.keywords) < len(names):
        return step

    def keyed(state: Any, batch: Any) -> Any:
        missing = [name for name in ("seed", "step") if not hasattr(state, name)]
        if missing:
            raise UsageError(
                f"the step function takes a key as its third argument, and its state has no {missing[0]!r} "
                "to draw it from.\n  Give the state the fields `seed`, uint32[], and `step`, int32[], as a "
                "TrainState has; or take (state, batch) alone."
            )
        values = dict(zip(names, (state, batch, step_key(state)), strict=True))
        return in_order(step, values, "step function", optional="key")()

    return keyed
