"""Attention as it is computed here, held to its definition in random cases."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.nn._attention import attention
from meshwright.nn._dense import plain
from meshwright.nn._given import Given

_LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}
"""The largest difference, as a part of the largest number."""


@dataclass(frozen=True)
class Proved:
    """A random case of attention, and by how much it missed its definition."""

    shape: str
    dtype: str
    mask: str
    values: float
    """The largest difference from the definition in float32, as a part of the largest number."""
    gradients: float
    """That of the gradients of q, k and v."""
    limit: float

    @property
    def holds(self) -> bool:
        """True if both are within the limit; not if they are NaN."""
        return self.values <= self.limit and self.gradients <= self.limit


def proofs(
    attend: Callable[..., jax.Array] = attention, *, num_cases: int = 8, seed: int = 0
) -> Iterator[Proved]:
    """Yield random cases of shape, mask, window and dtype, computed on the default device and compared.

    Half of the cases ask for what kernels of attention compute; the others for segments, soft caps and
    windows without a causal mask.

    Args:
      attend: The function to prove, called as `mw.attention`.
      num_cases: The number of cases.
      seed: What the cases are drawn from.

    Example:
      >>> next(mw.nn.proofs(num_cases=1)).holds
      True
    """
    for number in range(num_cases):
        yield _proved(attend, np.random.default_rng((seed, number)), is_plain=number % 2 == 0)


def _proved(attend: Callable[..., jax.Array], random: np.random.Generator, is_plain: bool) -> Proved:
    dtype = str(random.choice(["float32", "bfloat16"]))
    B, T, K, G, H = (int(random.choice(of)) for of in ((1, 2), (96, 520, 700), (1, 2), (1, 2), (16, 32, 64)))
    q = jnp.asarray(random.normal(size=(B, T, K * G, H)), dtype)
    k, v = (jnp.asarray(random.normal(size=(B, T, K, H)), dtype) for _ in "kv")
    asked = _asked(random, is_plain, B, T)

    def definition(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return plain(Given.of(q, k, v, scale=None, bias=None, **asked))[0]

    def results(function: Callable[..., jax.Array], *arrays: jax.Array) -> Any:
        def total(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = function(*arrays).astype(jnp.float32)
            return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*arrays)

    # Where the hardware multiplies float32 in fewer bits, the definition and what is proved would both err.
    with jax.default_matmul_precision("highest"):
        gradients, out = results(lambda *arrays: attend(*arrays, **asked), q, k, v)
        expected, exact = results(definition, *(x.astype(jnp.float32) for x in (q, k, v)))
    missed = max(_difference(*pair) for pair in zip(gradients, expected, strict=True))
    shape = f"{B}x{T}x{K * G}x{H}, {K} of keys"
    return Proved(shape, dtype, _mask(asked), _difference(out, exact), missed, _LIMITS[dtype])


def _asked(random: np.random.Generator, is_plain: bool, B: int, T: int) -> dict[str, Any]:
    causal = bool(random.integers(2))
    window = int(random.choice([7, 130])) if random.integers(2) and (causal or not is_plain) else None
    segments = None if is_plain else jnp.asarray(np.sort(random.integers(1, 4, (B, T))))
    softcap = 3.0 if not is_plain and random.integers(2) else None
    return {"causal": causal, "window": window, "segments": segments, "softcap": softcap}


def _mask(asked: dict[str, Any]) -> str:
    """Return what is asked for, in words."""
    arrays = [name for name in ("causal", "segments") if asked[name] is not None and asked[name] is not False]
    numbers = [f"{name} {asked[name]}" for name in ("window", "softcap") if asked[name] is not None]
    return ", ".join(arrays + numbers) or "none"


def _difference(found: jax.Array, expected: jax.Array) -> float:
    return float(abs(found.astype(jnp.float32) - expected).max() / abs(expected).max())
