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


def split_form(inputs: AttentionInputs, ways: int) -> str:
    """Return the form that sends the fewer bytes."""
    check_lengths(inputs, ways)
    if why_not_all_to_all(inputs, ways) or ring_nbytes(inputs, ways) <= all_to_all_nbytes(inputs, ways):
        return "ring"
    return "all-to-all"


def check_lengths(inputs: AttentionInputs, ways: int) -> None:
    """Raise an `AxisError` if the axis `sequence` does not split queries and keys into equal parts."""
    divisor = 2 * ways if is_balanced(inputs, ways) else ways
    lengths = {"queries": inputs.q.shape[1], "keys": inputs.k.shape[1]}
    for name, length in lengths.items():
        if not isinstance(length, int) or length % divisor:
            causal = ", two for each device, as the mask is causal" if divisor > ways else ""
            longer = "" if not isinstance(length, int) else f" of {-(-length // divisor) * divisor} positions"
            raise AxisError(
                f"mesh axis {SEQUENCE!r} of size {ways} does not split rows of {length} {name} into "
                f"{divisor} equal parts{causal}.\n"
                f"  Pad or pack rows so that the model sees rows{longer}, or use a smaller axis. A loss that "
                "predicts tokens[:, 1:] from tokens[:, :-1] needs rows of one token more.",
                SEQUENCE,
            )


def why_not_all_to_all(inputs: AttentionInputs, ways: int) -> str | None:
    """Return the reason why heads cannot be exchanged for positions; None if they can."""
    tensor = jax.sharding.get_abstract_mesh().shape.get(TENSOR, 1)
    heads = inputs.k.shape[2]
    if heads % (ways * tensor):
        return f"{SEQUENCE}={ways} times {TENSOR}={tensor} does not divide {heads} heads of keys"
    return None


def ring_nbytes(inputs: AttentionInputs, ways: int) -> float:
    """Return the bytes that a device sends for one layer, forward and backward, in a ring."""
    size, features = inputs.k.dtype.itemsize, inputs.k.shape[0] * inputs.q.shape[3] / ways
    keys = 2 * inputs.k.shape[1] * inputs.k.shape[2] * features
    # The gradients of keys and values are added up in the dtype of scores.
    wide = inputs.scores_dtype.itemsize
    turns = num_turns(inputs, ways)
    # Gradients are sent on with their keys, and then home.
    home = turns + 1 if turns > 1 else 1
    sent = keys * (2 * turns * size + home * wide)
    return sent + (all_to_all_nbytes(inputs, ways) if is_balanced(inputs, ways) else 0)


def all_to_all_nbytes(inputs: AttentionInputs, ways: int) -> float:
    """Return the bytes that a device sends if queries, keys, values and results change places twice."""
    (B, T, N, H), (S, K) = inputs.q.shape, inputs.k.shape[1:3]
    return 2 * (2 * T * N + 2 * S * K) * B * H * inputs.k.dtype.itemsize * (ways - 1) / ways**2


def all_to_all(inputs: AttentionInputs, compute: Callable[[AttentionInputs], Any]) -> Any:
    """Return the result of `compute`, which is split by heads inside and by positions before and after."""
    tensor = feature_axes(inputs.k.shape[2])
    heads, alone = (*tensor, SEQUENCE), tensor or None

    def moved(x: jax.Array, *specs: Any) -> jax.Array:
        for spec in specs:
            x = jax.lax.with_sharding_constraint(x, P(P.UNCONSTRAINED, *spec))
        return x

    by_position, by_head = (SEQUENCE, alone), (None, heads)
    q, k, v = (moved(x, by_position, by_head) for x in (inputs.q, inputs.k, inputs.v))
    result = compute(replace(inputs, q=q, k=k, v=v))
    if isinstance(result, tuple):
        out, lse = result
        return moved(out, by_head, by_position), moved(lse, (heads,), (alone, SEQUENCE))
    return moved(result, by_head, by_position)
