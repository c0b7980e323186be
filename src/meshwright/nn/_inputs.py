"""The arguments of attention, and the checks of them."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.errors import UsageError

_NOT_ALIKE = re.compile(r"\b(random_(bits|gamma)|threefry2x32|rng_(bit_generator|uniform)|axis_index)\b")
"""Primitives whose results differ between devices, or should."""
Segments: TypeAlias = tuple[jax.Array, jax.Array]


class Bias(NamedTuple):
    """A bias of the scores, computed for one block of queries and keys at a time, and never held as a whole.

    Example:
      >>> slopes = jnp.array([0.5, 0.25])  # ALiBi's, of two heads
      >>> slope = lambda slopes, t, s: -slopes[:, None, None] * abs(t[:, None] - s)
      >>> bias = mw.nn._internal.Bias(slope, slopes)
      >>> x = jnp.ones((1, 8, 2, 4))
      >>> mw.nn.attention(x, x, x, bias=bias).shape
      (1, 8, 2, 4)
    """

    function: Callable[[Any, jax.Array, jax.Array], jax.Array]
    """`(operand, t, s) -> [N, len(t), len(s)]`: the bias of all N heads, given int32 positions."""
    operand: Any
    """A pytree of arrays that the function reads, such as a table of distances. It has a gradient."""


@dataclass(frozen=True)
class AttentionInputs:
    """The arguments of attention."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    causal: bool
    segments: Segments | None
    window: int | jax.Array | None
    softcap: float | None
    scale: float
    bias: jax.Array | Bias | None
    leaves_rows_empty: bool
    """True if some queries may see no key."""

    @classmethod
    def create(
        cls,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        causal: bool,
        segments: Any,
        window: Any,
        softcap: float | None,
        scale: float | None,
        bias: Any,
    ) -> "AttentionInputs":
        """Check the arguments of `attention`."""
        q, k, v = (jnp.asarray(x) for x in (q, k, v))
        _check_arrays(q, k, v)
        is_pair = isinstance(segments, tuple)
        pair = segments if is_pair or segments is None else (segments, segments)
        pair = None if pair is None else (jnp.asarray(pair[0]), jnp.asarray(pair[1]))
        bias = bias if bias is None or isinstance(bias, Bias) else jnp.asarray(bias)
        _check_segments(q, k, pair)
        if window is not None:
            window = int(window) if isinstance(window, np.integer) else window
            _check_window(window)
        if softcap is not None and not softcap > 0:
            raise UsageError(f"softcap={softcap}: expected a number above 0.")
        _check_bias(q, k, bias)
        is_empty = is_pair or (window is not None and q.shape[1] > k.shape[1])
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return cls(q, k, v, causal, pair, window, softcap, scale, bias, is_empty)

    @property
    def scores_dtype(self) -> Any:
        """The dtype of scores and sums: float32, or wider where the queries are."""
        return jnp.promote_types(self.q.dtype, jnp.float32)


def result_without_draws(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the structs that a user's function returns, or raise if the function draws random numbers."""
    jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if match := _NOT_ALIKE.search(str(jaxpr)):
        raise UsageError(
            f"{name} must not draw random numbers or ask for its device, but computes {match[0]}: it is "
            "called for several parts, on each device anew, and the draws of all would be the same.\n"
            "  Draw outside, such as for dropout after mw.nn.moe or of the values of mw.nn.attention."
        )
    return result


def visible(
    causal: bool, window: Any, segments: Segments | None, t: jax.Array, s: jax.Array
) -> jax.Array | None:
    """Return the mask of keys that each query sees, bool[B or 1, t, s]; None if each sees all."""
    distance = t[:, None] - s
    masks = []
    if causal:
        masks.append((distance >= 0)[None])
    if window is not None:
        masks.append((distance < window)[None])
        if not causal:
            masks.append((distance > -window)[None])
    if segments is not None:
        masks.append(segments[0][:, :, None] == segments[1][:, None])
    return reduce(operator.and_, masks) if masks else None


def _check_arrays(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise UsageError(f"attention takes q [B, T, N, H] and k, v [B, S, K, H]: found {shapes}.")
    if k.shape != v.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise UsageError(f"k and v must have the same shape, and q the same B and H: found {shapes}.")
    if q.shape[2] % k.shape[2]:
        raise UsageError(f"the number of heads of k must divide that of q: found {shapes}.")
    if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in (q, k, v)):
        raise UsageError(f"q, k and v must have floating dtypes: found {q.dtype}, {k.dtype} and {v.dtype}.")


def _check_window(window: Any) -> None:
    has_dtype = hasattr(window, "dtype") and not window.ndim
    if not (isinstance(window, int) or (has_dtype and jnp.issubdtype(window.dtype, jnp.integer))):
        raise UsageError(f"window must be a whole number of positions or a scalar array: found {window!r}.")
    if isinstance(window, int) and window < 1:
        raise UsageError(f"window={window}: expected at least 1, which is the query's own position.")


def _check_segments(q: jax.Array, k: jax.Array, segments: Segments | None) -> None:
    if segments is None:
        return
    shapes = tuple(x.shape for x in segments)
    if shapes != (q.shape[:2], k.shape[:2]):
        raise UsageError(
            f"segments have shapes {shapes[0]} for queries and {shapes[1]} for keys: expected {q.shape[:2]} "
            f"and {k.shape[:2]}, batch and positions."
        )


def _check_bias(q: jax.Array, k: jax.Array, bias: Any) -> None:
    if bias is None:
        return
    (B, T, N, _), S = q.shape, k.shape[1]
    if isinstance(bias, Bias):
        positions = jax.ShapeDtypeStruct((T,), jnp.int32), jax.ShapeDtypeStruct((S,), jnp.int32)
        shape = result_without_draws("a Bias", bias.function, bias.operand, *positions).shape
        if shape != (N, T, S):
            raise UsageError(
                f"the function of a Bias must return [N, t, s]: expected {(N, T, S)}, found {shape}."
            )
    elif (
        bias.ndim != 4
        or bias.shape[0] not in (1, B)
        or bias.shape[1] not in (1, N)
        or bias.shape[2:] != (T, S)
    ):
        raise UsageError(f"bias must be [B or 1, N or 1, T, S]: expected {(B, N, T, S)}, found {bias.shape}.")
