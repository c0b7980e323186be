"""The public `attention`, the choice of its form, and the form with all scores at once, for short rows."""

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError, did_you_mean
from meshwright.nn._blockwise import blockwise
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs, Bias, visible
from meshwright.nn._kernels import cudnn, splash, splash_with_lse, why_not_cudnn, why_not_splash
from meshwright.nn._ring import ring
from meshwright.nn._sequence_parallel import FORMS as _SPLIT_FORMS
from meshwright.nn._sequence_parallel import all_to_all, check_lengths, split_form, why_not_all_to_all
from meshwright.parallel._internal import SEQUENCE, sequence_ways

_LARGEST_DENSE = 512 * 512
"""The largest number of queries × keys for which all scores of a head are held at once: one block of the
blockwise form."""
_FORMS = ("dense", "blockwise", "cudnn", "splash")
_KERNELS = {"cudnn": (cudnn, why_not_cudnn), "splash": (splash, why_not_splash)}
"""Kernels of vendors in the order of trial, with functions that say why they cannot compute arguments."""
_PLATFORMS = {"cudnn": "gpu", "splash": "tpu"}
_NEWEST = (9, 0)
"""The compute capability that is assumed of GPUs that are not here: that of H100s."""


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool = False,
    segments: jax.Array | tuple[jax.Array, jax.Array] | None = None,
    window: int | jax.Array | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    bias: jax.Array | Bias | None = None,
    with_lse: bool = False,
    form: Literal["dense", "blockwise", "cudnn", "splash", "ring", "all-to-all"] | None = None,
) -> Any:
    """Return, for each query, the mean of the values, weighted by the softmax of the query's scores.

    Long rows are computed block by block (Rabe and Staats, arXiv:2112.05682; Dao, arXiv:2205.14135). So
    memory grows with the length and not with its square, in the gradient too. Blocks that the mask hides
    from all queries are not computed. A query that sees no key gives 0.

    Unproven: never run on GPUs and TPUs, where it takes kernels of their own.

    Args:
      q: [B, T, N, H], the queries of N heads.
      k: [B, S, K, H], the keys. K must divide N. N / K heads of queries share one head of keys and values.
      v: [B, S, K, H], the values.
      causal: If true, a query sees only the keys up to its own position.
      segments: The segment of each position, int[B, T]; a query sees only the keys of its own segment. If
        keys have other segments than queries, a pair of int[B, T] and int[B, S].
      window: A query sees only the keys that are less than this number of positions away. A scalar array
        works too, but then no blocks are skipped.
      softcap: If given, each score x becomes softcap × tanh(x / softcap), before `bias` is added.
      scale: The factor that multiplies the scores; None for H ** -0.5.
      bias: An array [B or 1, N or 1, T, S] that is added to the scores; it needs as much memory as they do.
        Or a `Bias`, which computes the numbers to add for one block at a time.
      with_lse: If true, return also float32[B, N, T], the log-sum-exp of each query's scores. It is -inf for
        a query that sees no key. With it, one can join the results over several sets of keys. "splash" then
        computes the gradient block by block.
      form: The algorithm. "dense" holds all scores at once, "blockwise" those of one block. "cudnn" is
        NVIDIA's kernel and "splash" JAX's kernel for TPUs; they have no second derivative. None chooses:
        "dense" for short rows, a kernel where the hardware has it and it supports these arguments, and
        "blockwise" otherwise. "splash" is split over the mesh of the step, rows over its batch axes and heads
        over `tensor`. A plan for GPUs that are not here computes "cudnn" block by block, and counts it as
        one kernel: it needs no cuDNN.
        On a mesh with the axis `sequence`, which splits rows along their length, there are two
        forms: "ring" sends keys and values from device to device, and "all-to-all" gives each device some
        heads of whole rows. None chooses the one that sends fewer bytes.

    Returns:
      An array [B, T, N, H] of the dtype of `v`; with `with_lse`, a pair of it and the log-sum-exp.

    Raises:
      UsageError: Shapes or dtypes do not fit together, or `form` is unknown or does not support them.
      LayoutError: The axis `sequence` does not divide the rows, or a causal mask needs two parts for each of
        its devices.

    Example:
      >>> x = jnp.ones((2, 1024, 4, 16))
      >>> mw.nn.attention(x, x, x, causal=True, window=128).shape
      (2, 1024, 4, 16)
    """
    inputs = AttentionInputs.create(q, k, v, causal, segments, window, softcap, scale, bias)
    ways = sequence_ways()
    if ways > 1:
        return _split(form, inputs, with_lse, ways)
    return _computed(form, inputs, with_lse)


def _split(form: str | None, inputs: AttentionInputs, with_lse: bool, ways: int) -> Any:
    """Return the attention of rows that the axis `sequence` splits along their length."""
    if form is None:
        form = split_form(inputs, ways)
    check_lengths(inputs, ways)
    reason = why_not_all_to_all(inputs, ways) if form == "all-to-all" else None
    if form not in _SPLIT_FORMS:
        reason = f"the mesh axis {SEQUENCE!r} of size {ways} splits rows"
    if reason is not None:
        raise UsageError(f"form={form!r} is not possible: {reason}.\n  Leave form out, or take 'ring'.")
    if form == "all-to-all":
        return all_to_all(inputs, partial(_computed, None, with_lse=with_lse))
    out, lse = ring(inputs, ways)
    return (out, lse) if with_lse else out


def _computed(form: str | None, inputs: AttentionInputs, with_lse: bool) -> Any:
    hardware = Hardware.current()
    name = chosen(inputs, with_lse, hardware) if form is None else _checked(form, inputs, with_lse, hardware)
    # Only its own hardware can trace a kernel. A plan counts both forms as one.
    if name in _KERNELS and hardware.is_absent:
        name = "blockwise"
    if name == "splash" and with_lse:
        return splash_with_lse(inputs)
    if name in _KERNELS:
        return _KERNELS[name][0](inputs)
    if name == "dense" and not with_lse:
        return dense(inputs)
    out, lse = (plain if name == "dense" else blockwise)(inputs)
    return (out, lse) if with_lse else out


def chosen(inputs: AttentionInputs, with_lse: bool, hardware: Hardware) -> str:
    """Return the name of the form that computes this on the hardware."""
    sizes = inputs.q.shape[1], inputs.k.shape[1]
    if not all(isinstance(size, int) for size in sizes):
        # A program is exported for any length: its blocks cannot be counted.
        return "dense"
    if math.prod(sizes) <= _LARGEST_DENSE and not with_lse:
        return "dense"
    fitting = (name for name, (_, why_not) in _KERNELS.items() if not why_not(inputs, with_lse, hardware))
    return next(fitting, "blockwise")


def why_not(form: str, inputs: AttentionInputs, with_lse: bool, hardware: Hardware) -> str | None:
    """Return the reason why a form cannot compute this on the hardware; None if it can."""
    if form not in _KERNELS:
        return None
    # A plan may not say enough about devices that this process lacks.
    if hardware.is_unknown:
        hardware = replace(hardware, platform=_PLATFORMS[form])
    if hardware.is_absent and hardware.platform == "gpu":
        hardware = replace(hardware, capability=_NEWEST)
    return _KERNELS[form][1](inputs, with_lse, hardware)


def _checked(form: str, inputs: AttentionInputs, with_lse: bool, hardware: Hardware) -> str:
    if form not in _FORMS:
        if form in _SPLIT_FORMS:
            raise UsageError(f"form={form!r} needs a mesh with the axis {SEQUENCE!r}.\n  Leave form out.")
        hint = did_you_mean(str(form), _FORMS)
        raise UsageError(f"form={form!r} is not known.{hint}\n  There are {', '.join(_FORMS)}.")
    if reason := why_not(form, inputs, with_lse, hardware):
        raise UsageError(
            f"form={form!r} does not support these arguments: {reason}.\n  Try form='blockwise'."
        )
    return form


def dense(inputs: AttentionInputs) -> jax.Array:
    """Return the attention, [B, T, N, H], by `jax.nn` if the scores have no cap."""
    if inputs.softcap is not None:
        return plain(inputs)[0]
    mask = _mask(inputs)
    is_causal_alone = inputs.causal and inputs.window is None and inputs.segments is None
    out = jax.nn.dot_product_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        _bias(inputs),
        None if is_causal_alone or mask is None else mask[:, None],
        is_causal=is_causal_alone,
        scale=inputs.scale,
    )
    if mask is None or not inputs.leaves_rows_empty:
        return out
    # For a query that sees no key, a softmax makes the mean of all values.
    return jnp.where(mask.any(-1)[:, :, None, None], out, jnp.zeros((), out.dtype))


def plain(inputs: AttentionInputs) -> tuple[jax.Array, jax.Array]:
    """Return the attention, [B, T, N, H], and the logarithms of the sums, [B, N, T], as defined."""
    B, T, N, H = inputs.q.shape
    K = inputs.k.shape[2]
    q_BTKGH = inputs.q.reshape(B, T, K, N // K, H) * inputs.scale
    scores = jnp.einsum("btkgh,bskh->bkgts", q_BTKGH, inputs.k, preferred_element_type=inputs.scores_dtype)
    if inputs.softcap is not None:
        scores = inputs.softcap * jnp.tanh(scores / inputs.softcap)
    if (bias := _bias(inputs)) is not None:
        scores += jnp.broadcast_to(bias, (bias.shape[0], N, *bias.shape[2:])).reshape(-1, *scores.shape[1:])
    mask = _mask(inputs)
    sees = jnp.ones((1, 1, 1, T, 1), bool) if mask is None else mask.any(-1, keepdims=True)[:, None, None]
    # A query that sees nothing first gets all keys, as 0 / 0 has no gradient.
    if mask is not None:
        scores = jnp.where(mask[:, None, None] | ~sees, scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    weights = jnp.where(sees, jnp.exp(scores - lse), 0).astype(inputs.v.dtype)
    out = jnp.einsum("bkgts,bskh->btkgh", weights, inputs.v).reshape(inputs.q.shape)
    return out, jnp.where(sees, lse, -jnp.inf).reshape(B, N, T)


def _mask(inputs: AttentionInputs) -> jax.Array | None:
    t, s = (jnp.arange(x.shape[1]) for x in (inputs.q, inputs.k))
    return visible(inputs.causal, inputs.window, inputs.segments, t, s)


def _bias(inputs: AttentionInputs) -> jax.Array | None:
    if not isinstance(inputs.bias, Bias):
        return inputs.bias
    t, s = (jnp.arange(x.shape[1]) for x in (inputs.q, inputs.k))
    return inputs.bias.function(inputs.bias.operand, t, s)[None]
