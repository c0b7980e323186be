"""Attention: arguments are checked, and the form is chosen that computes it."""

from typing import Any, Literal

import jax

from meshwright.errors import UsageError, nearest
from meshwright.nn._blockwise import blockwise
from meshwright.nn._cudnn import Hardware, cudnn, why_not_cudnn
from meshwright.nn._dense import dense, plain
from meshwright.nn._given import Bias, Given

_LARGEST_DENSE = 512 * 512
"""Queries × keys up to which all scores of a head are held at once: one block of the other form."""
_FORMS = ("dense", "blockwise", "cudnn")


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
    form: Literal["dense", "blockwise", "cudnn"] | None = None,
) -> Any:
    """Return the attention of queries to keys: for each query, the mean of the values by its scores.

    Long rows are computed block by block (Rabe and Staats, arXiv:2112.05682; Dao, arXiv:2205.14135): memory
    grows with their length, not with its square, in the gradient too. Blocks that no query sees are left out.
    A query that sees no key gives 0.

    Args:
      q: [B, T, N, H], the queries of N heads.
      k: [B, S, K, H], the keys. K divides N: with fewer heads than queries have, N / K heads share one.
      v: [B, S, K, H], the values.
      causal: A query sees the keys up to its own position.
      segments: int[B, T]: a query sees the keys of its own segment. A pair of int[B, T] and int[B, S] where
        keys have other segments than queries.
      window: A query sees keys less than so many positions before and after its own. A number, or a scalar
        array, which leaves no blocks out.
      softcap: Scores are bent into ± this by tanh, before `bias`.
      scale: Scores are multiplied by this; H ** -0.5 if not given.
      bias: What is added to the scores: an array [B or 1, N or 1, T, S], which is as large as all scores of
        its heads; or a `Bias`, which computes it for each block.
      with_lse: Return also float32[B, N, T], the logarithm of the sum of the exponentials of each query's
        scores, -inf of one that sees no key: parts over several sets of keys are joined by it.
      form: How it is computed. "dense" holds all scores, "blockwise" those of a block, "cudnn" is
        NVIDIA's kernel, which has no second derivative. Without it short rows are dense; others take the
        kernel where it computes all that is asked for, and are blockwise otherwise.

    Returns:
      [B, T, N, H] of the dtype of `v`; with `with_lse` a pair of that and the logarithms.

    Raises:
      UsageError: Shapes or types do not go together, there is no such form, or it does not compute this.

    Example:
      >>> x = jnp.ones((2, 1024, 4, 16))
      >>> mw.attention(x, x, x, causal=True, window=128).shape
      (2, 1024, 4, 16)
    """
    given = Given.of(q, k, v, causal, segments, window, softcap, scale, bias)
    chosen = _chosen(given, with_lse, Hardware.here()) if form is None else _checked(form, given, with_lse)
    if chosen == "cudnn":
        return cudnn(given)
    if chosen == "dense" and not with_lse:
        return dense(given)
    out, lse = (plain if chosen == "dense" else blockwise)(given)
    return (out, lse) if with_lse else out


def _chosen(given: Given, with_lse: bool, hardware: Hardware) -> str:
    if given.q.shape[1] * given.k.shape[1] <= _LARGEST_DENSE and not with_lse:
        return "dense"
    return "blockwise" if why_not_cudnn(given, with_lse, hardware) else "cudnn"


def _checked(form: str, given: Given, with_lse: bool) -> str:
    if form not in _FORMS:
        close = nearest(str(form), _FORMS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise UsageError(f"form={form!r} is not known.{hint}\n  There are {', '.join(_FORMS)}.")
    reason = why_not_cudnn(given, with_lse, Hardware.here()) if form == "cudnn" else None
    if reason is not None:
        raise UsageError(f"form='cudnn' does not compute this: {reason}.\n  Try form='blockwise'.")
    return form
