"""The public `attention`: it checks the arguments and chooses the form that computes them."""

import math
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax

from meshwright.errors import UsageError, did_you_mean
from meshwright.nn._blockwise import blockwise
from meshwright.nn._cudnn import cudnn, why_not_cudnn
from meshwright.nn._dense import dense, plain
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs, Bias
from meshwright.nn._ring import ring
from meshwright.nn._sequence_parallel import FORMS as _OF_PARTS
from meshwright.nn._sequence_parallel import check_lengths, chosen_of_parts, exchanged, why_not_exchanged
from meshwright.nn._splash import splash, splash_with_lse, why_not_splash
from meshwright.parallel._internal import SEQUENCE, sequence_ways

_LARGEST_DENSE = 512 * 512
"""The largest number of queries × keys for which all scores of a head are held at once: one block of the
blockwise form."""
_FORMS = ("dense", "blockwise", "cudnn", "splash")
_KERNELS = {"cudnn": (cudnn, why_not_cudnn), "splash": (splash, why_not_splash)}
"""Kernels of vendors in the order in which they are tried, with functions that say what they cannot do."""
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
    given = AttentionInputs.of(q, k, v, causal, segments, window, softcap, scale, bias)
    ways = sequence_ways()
    if ways > 1:
        return _of_parts(form, given, with_lse, ways)
    return _computed(form, given, with_lse)


def _of_parts(form: str | None, given: AttentionInputs, with_lse: bool, ways: int) -> Any:
    """Return the attention of rows that the axis `sequence` splits along their length."""
    if form is None:
        form = chosen_of_parts(given, ways)
    check_lengths(given, ways)
    reason = why_not_exchanged(given, ways) if form == "all-to-all" else None
    if form not in _OF_PARTS:
        reason = f"the mesh axis {SEQUENCE!r} of size {ways} splits rows"
    if reason is not None:
        raise UsageError(f"form={form!r} is not possible: {reason}.\n  Leave form out, or take 'ring'.")
    if form == "all-to-all":
        return exchanged(given, partial(_computed, None, with_lse=with_lse))
    out, lse = ring(given, ways)
    return (out, lse) if with_lse else out


def _computed(form: str | None, given: AttentionInputs, with_lse: bool) -> Any:
    hardware = Hardware.here()
    by = chosen(given, with_lse, hardware) if form is None else _checked(form, given, with_lse, hardware)
    if by in _KERNELS and hardware.is_absent:
        by = "blockwise"  # only its own hardware can trace the kernel; a plan counts both as one
    if by == "splash" and with_lse:
        return splash_with_lse(given)
    if by in _KERNELS:
        return _KERNELS[by][0](given)
    if by == "dense" and not with_lse:
        return dense(given)
    out, lse = (plain if by == "dense" else blockwise)(given)
    return (out, lse) if with_lse else out


def chosen(given: AttentionInputs, with_lse: bool, hardware: Hardware) -> str:
    """Return the name of the form that computes this on the hardware."""
    sizes = given.q.shape[1], given.k.shape[1]
    if not all(isinstance(size, int) for size in sizes):
        return "dense"  # exported for any length, of which blocks cannot be counted
    if math.prod(sizes) <= _LARGEST_DENSE and not with_lse:
        return "dense"
    fitting = (name for name, (_, why_not) in _KERNELS.items() if not why_not(given, with_lse, hardware))
    return next(fitting, "blockwise")


def why_not(form: str, given: AttentionInputs, with_lse: bool, hardware: Hardware) -> str | None:
    """Return the reason why a form cannot compute this on the hardware; None if it can."""
    if form not in _KERNELS:
        return None
    return _KERNELS[form][1](given, with_lse, _planned_for(form, hardware))


def _checked(form: str, given: AttentionInputs, with_lse: bool, hardware: Hardware) -> str:
    if form not in _FORMS:
        if form in _OF_PARTS:
            raise UsageError(f"form={form!r} needs a mesh with the axis {SEQUENCE!r}.\n  Leave form out.")
        hint = did_you_mean(str(form), _FORMS)
        raise UsageError(f"form={form!r} is not known.{hint}\n  There are {', '.join(_FORMS)}.")
    if reason := why_not(form, given, with_lse, hardware):
        raise UsageError(
            f"form={form!r} does not support these arguments: {reason}.\n  Try form='blockwise'."
        )
    return form


def _planned_for(form: str, hardware: Hardware) -> Hardware:
    """Return the hardware, completed where a plan does not say enough about devices that are not here."""
    platform = _PLATFORMS.get(form, hardware.platform) if hardware.is_unknown else hardware.platform
    capability = _NEWEST if hardware.is_absent and platform == "gpu" else hardware.capability
    return replace(hardware, platform=platform, capability=capability)
