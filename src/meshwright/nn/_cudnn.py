"""cuDNN's kernel of attention, through `jax.nn`, and the table of what it computes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from meshwright.nn._given import Given

_NARROW = (jnp.bfloat16, jnp.float16)


@dataclass(frozen=True)
class Hardware:
    """The devices that a program is traced for."""

    platform: str
    """"cpu", "gpu" or "tpu"."""
    capability: tuple[int, int] = (0, 0)
    """The compute capability of NVIDIA's devices."""

    @classmethod
    def here(cls) -> "Hardware":
        """Return the default devices of this process."""
        platform = jax.default_backend()
        told = str(getattr(jax.local_devices()[0], "compute_capability", "")) if platform == "gpu" else ""
        major, _, minor = told.partition(".")  # AMD's are called gfx90a
        is_told = major.isdigit() and minor.isdigit()
        return cls(platform, (int(major), int(minor)) if is_told else (0, 0))


def why_not_cudnn(given: Given, with_lse: bool, hardware: Hardware) -> str | None:
    """Return why cuDNN's kernel does not compute this on the hardware; None where it does.

    Masks and biases that it would take only as an array of all scores are left to blocks.
    """
    size = given.q.shape[-1]
    largest = 256 if hardware.capability >= (9, 0) else 128
    dtypes = {x.dtype for x in (given.q, given.k, given.v)}
    has_window = given.window is not None
    reasons = {
        "it needs an NVIDIA GPU of compute capability 8.0 or higher": hardware.capability < (8, 0),
        "q, k and v are not all bfloat16 or all float16": len(dtypes) > 1
        or not dtypes & {*map(jnp.dtype, _NARROW)},
        f"heads have {size} features: it takes multiples of 8 up to {largest}": size % 8 != 0
        or size > largest,
        "it has no soft cap": given.softcap is not None,
        "it takes segments only as an array of queries × keys": given.segments is not None,
        "it takes a bias only as an array of queries × keys": given.bias is not None,
        "its window is a number, and causal": has_window
        and not (given.causal and isinstance(given.window, int)),
        "a causal mask is of as many queries as keys": given.causal and given.q.shape[1] != given.k.shape[1],
        "it does not return the logarithms of the sums": with_lse,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def cudnn(given: Given) -> jax.Array:
    """Return what is attended to, [B, T, N, H]."""
    return jax.nn.dot_product_attention(
        given.q,
        given.k,
        given.v,
        is_causal=given.causal,
        scale=float(given.scale),
        local_window_size=None if given.window is None else (int(given.window) - 1, 0),
        implementation="cudnn",
    )
