"""Attention over rows that the mesh axis `sequence` splits along their length: the choice of the form.

"ring" sends keys and values from device to device (`_ring.py`). "all-to-all" gives each device some heads of
whole rows (Jacobs et al., arXiv:2309.14509): each array is exchanged before and after, and what is between is
attention in any form. A step sends the fewer bytes of both.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from meshwright.errors import AxisError
from meshwright.nn._inputs import AttentionInputs
from meshwright.nn._ring import is_balanced, num_turns
from meshwright.parallel._internal import SEQUENCE, TENSOR, feature_axes

FORMS = ("ring", "all-to-all")
"""The forms that keep rows split."""


def chosen_of_parts(given: AttentionInputs, ways: int) -> str:
    """Return the form that sends the fewer bytes."""
    check_lengths(given, ways)
    if why_not_exchanged(given, ways) or ring_nbytes(given, ways) <= exchanged_nbytes(given, ways):
        return "ring"
    return "all-to-all"


def check_lengths(given: AttentionInputs, ways: int) -> None:
    """Raise an `AxisError` if the axis `sequence` does not split queries and keys into equal parts."""
    divisor = 2 * ways if is_balanced(given, ways) else ways
    lengths = {"queries": given.q.shape[1], "keys": given.k.shape[1]}
    for things, length in lengths.items():
        if not isinstance(length, int) or length % divisor:
            causal = ", two for each device, as the mask is causal" if divisor > ways else ""
            longer = "" if not isinstance(length, int) else f" of {-(-length // divisor) * divisor} positions"
            raise AxisError(
                f"mesh axis {SEQUENCE!r} of size {ways} does not split rows of {length} {things} into "
                f"{divisor} equal parts{causal}.\n"
                f"  Pad or pack rows so that the model sees rows{longer}, or use a smaller axis. A loss that "
                "predicts tokens[:, 1:] from tokens[:, :-1] needs rows of one token more.",
                SEQUENCE,
            )


def why_not_exchanged(given: AttentionInputs, ways: int) -> str | None:
    """Return the reason why heads cannot be exchanged for positions; None if they can."""
    tensor = jax.sharding.get_abstract_mesh().shape.get(TENSOR, 1)
    heads = given.k.shape[2]
    if heads % (ways * tensor):
        return f"{SEQUENCE}={ways} times {TENSOR}={tensor} does not divide {heads} heads of keys"
    return None


def ring_nbytes(given: AttentionInputs, ways: int) -> float:
    """Return the bytes that a device sends for one layer, forward and backward, in a ring."""
    size, features = given.k.dtype.itemsize, given.k.shape[0] * given.q.shape[3] / ways
    keys = 2 * given.k.shape[1] * given.k.shape[2] * features
    wide = given.scores_dtype.itemsize  # the gradients of keys and values are added up in this dtype
    turns = num_turns(given, ways)
    home = turns + 1 if turns > 1 else 1  # gradients are sent on with their keys, and then home
    sent = keys * (2 * turns * size + home * wide)
    return sent + (exchanged_nbytes(given, ways) if is_balanced(given, ways) else 0)


def exchanged_nbytes(given: AttentionInputs, ways: int) -> float:
    """Return the bytes that a device sends if queries, keys, values and results change places twice."""
    (B, T, N, H), (S, K) = given.q.shape, given.k.shape[1:3]
    return 2 * (2 * T * N + 2 * S * K) * B * H * given.k.dtype.itemsize * (ways - 1) / ways**2


def exchanged(given: AttentionInputs, compute: Callable[[AttentionInputs], Any]) -> Any:
    """Return the result of `compute`, which is split by heads inside and by positions before and after."""
    tensor = feature_axes(given.k.shape[2])
    heads, alone = (*tensor, SEQUENCE), tensor or None

    def moved(x: jax.Array, *places: Any) -> jax.Array:
        for place in places:
            x = jax.lax.with_sharding_constraint(x, P(P.UNCONSTRAINED, *place))
        return x

    by_position, by_head = (SEQUENCE, alone), (None, heads)
    q, k, v = (moved(x, by_position, by_head) for x in (given.q, given.k, given.v))
    found = compute(replace(given, q=q, k=k, v=v))
    if isinstance(found, tuple):
        out, lse = found
        return moved(out, by_head, by_position), moved(lse, (heads,), (alone, SEQUENCE))
    return moved(found, by_head, by_position)
