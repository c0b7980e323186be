"""The public `attention`: it checks the arguments and chooses the form that computes them."""

from typing import Any, Literal

import jax

from meshwright.errors import UsageError, nearest
from meshwright.nn._blockwise import blockwise
from meshwright.nn._cudnn import cudnn, why_not_cudnn
from meshwright.nn._dense import dense, plain
from meshwright.nn._hardware import Hardware
from meshwright.nn._inputs import AttentionInputs, Bias
from meshwright.nn._splash import splash, splash_with_lse, why_not_splash

_LARGEST_DENSE = 512 * 512
"""The largest number of queries × keys for which all scores of a head are held at once: one block of the
blockwise form."""
_FORMS = ("dense", "blockwise", "cudnn", "splash")
_KERNELS = {"cudnn": (cudnn, why_not_cudnn), "splash": (splash, why_not_splash)}
"""Kernels of vendors in the order in which they are tried, with functions that say what they cannot do."""


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
    form: Literal["dense", "blockwise", "cudnn", "splash"] | None = None,
) -> Any:
    """Return, for each query, the mean of the values, weighted by the softmax of the query's scores.

    Long rows are computed block by block (Rabe and Staats, arXiv:2112.05682; Dao, arXiv:2205.14135). So
    memory grows with the length and not with its square, in the gradient too. Blocks that the mask hides
    from all queries are not computed. A query that sees no key gives 0.

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
        over `tensor`.

    Returns:
      An array [B, T, N, H] of the dtype of `v`; with `with_lse`, a pair of it and the log-sum-exp.

    Raises:
      UsageError: Shapes or dtypes do not fit together, or `form` is unknown or does not support them.

    Example:
      >>> x = jnp.ones((2, 1024, 4, 16))
      >>> mw.attention(x, x, x, causal=True, window=128).shape
      (2, 1024, 4, 16)
    """
    given = AttentionInputs.of(q, k, v, causal, segments, window, softcap, scale, bias)
    by = chosen(given, with_lse, Hardware.here()) if form is None else _checked(form, given, with_lse)
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
    if given.q.shape[1] * given.k.shape[1] <= _LARGEST_DENSE and not with_lse:
        return "dense"
    fitting = (name for name, (_, why_not) in _KERNELS.items() if not why_not(given, with_lse, hardware))
    return next(fitting, "blockwise")


def _checked(form: str, given: AttentionInputs, with_lse: bool) -> str:
    if form not in _FORMS:
        close = nearest(str(form), _FORMS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"form={form!r} is not known.{hint}\n  There are {', '.join(_FORMS)}.")
    reason = _KERNELS[form][1](given, with_lse, Hardware.here()) if form in _KERNELS else None
    if reason is not None:
        raise UsageError(
            f"form={form!r} does not support these arguments: {reason}.\n  Try form='blockwise'."
        )
    return form
