"""Random cases of attention, computed on the devices at hand and compared with the definition."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.nn._attention import attention, chosen, plain, why_not
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs

_LIMITS = {"float32": 2e-5, "bfloat16": 2e-2}
"""The largest accepted difference from the definition, divided by the largest value."""


_HEADS = (16, 32, 64, 128)


@dataclass(frozen=True)
class CheckResult:
    """A random case of attention, and its difference from the definition."""

    shape: str
    dtype: str
    mask: str
    form: str
    """The form that `mw.nn.attention` chooses for it on this hardware."""
    values: float
    """The largest difference from the definition in float32, divided by the largest value."""
    gradients: float
    """The same for the gradients of q, k and v."""
    limit: float

    @property
    def passed(self) -> bool:
        """True if both differences are within the limit. NaN is not."""
        return self.values <= self.limit and self.gradients <= self.limit


def self_check(
    attend: Callable[..., jax.Array] = attention,
    *,
    num_cases: int = 8,
    seed: int = 0,
    form: str | None = None,
) -> Iterator[CheckResult]:
    """Yield random cases of shape, mask, window and dtype, computed on the default device and compared.

    cuDNN's kernel supports half of the cases. The others have segments, soft caps, or windows without a
    causal mask. Splash attention supports those of 640 positions with 64 features or more.

    Example:
      >>> next(mw.nn._internal.self_check(num_cases=1)).passed
      True
    """
    for number in range(num_cases):
        result = _check(attend, np.random.default_rng((seed, number)), form, is_plain=number % 2 == 0)
        if result is not None:
            yield result


def _check(
    attend: Callable[..., jax.Array], random: np.random.Generator, form: str | None, *, is_plain: bool
) -> CheckResult | None:
    dtype = str(random.choice(["float32", "bfloat16"]))
    B, T, K, G, H = (
        int(random.choice(sizes)) for sizes in ((1, 2), (96, 520, 640, 700), (1, 2), (1, 2), _HEADS)
    )
    q = jnp.asarray(random.normal(size=(B, T, K * G, H)), dtype)
    k, v = (jnp.asarray(random.normal(size=(B, T, K, H)), dtype) for _ in "kv")
    options = _random_options(random, is_plain, B, T)
    inputs = AttentionInputs.create(q, k, v, scale=None, bias=None, **options)
    if form is not None:
        if why_not(form, inputs, False, Hardware.current()):
            return None
        attend = partial(attend, form=form)

    def definition(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return plain(AttentionInputs.create(q, k, v, scale=None, bias=None, **options))[0]

    def results(function: Callable[..., jax.Array], *arrays: jax.Array) -> Any:
        def total(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = function(*arrays).astype(jnp.float32)
            return (out * jnp.cos(jnp.arange(out.size)).reshape(out.shape)).sum(), out

        return jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*arrays)

    # Some hardware multiplies float32 in fewer bits; then the definition itself would be inexact.
    with jax.default_matmul_precision("highest"):
        gradients, out = results(lambda *arrays: attend(*arrays, **options), q, k, v)
        expected, exact = results(definition, *(x.astype(jnp.float32) for x in (q, k, v)))
    missed = max(_difference(*pair) for pair in zip(gradients, expected, strict=True))
    shape = f"{B}x{T}x{K * G}x{H}, {K} of keys"
    form = form or chosen(inputs, False, Hardware.current())
    return CheckResult(shape, dtype, _mask(options), form, _difference(out, exact), missed, _LIMITS[dtype])


def _random_options(random: np.random.Generator, is_plain: bool, B: int, T: int) -> dict[str, Any]:
    causal = bool(random.integers(2))
    window = int(random.choice([7, 130])) if random.integers(2) and (causal or not is_plain) else None
    segments = None if is_plain else jnp.asarray(np.sort(random.integers(1, 4, (B, T))))
    softcap = 3.0 if not is_plain and random.integers(2) else None
    return {"causal": causal, "window": window, "segments": segments, "softcap": softcap}


def _mask(options: dict[str, Any]) -> str:
    """Return the options of a case as text."""
    causal = ["causal"] if options["causal"] else []
    segments = ["segments"] if options["segments"] is not None else []
    numbers = [f"{name} {options[name]}" for name in ("window", "softcap") if options[name] is not None]
    return ", ".join(causal + segments + numbers) or "none"


def _difference(result: jax.Array, expected: jax.Array) -> float:
    return float(abs(result.astype(jnp.float32) - expected).max() / abs(expected).max())
