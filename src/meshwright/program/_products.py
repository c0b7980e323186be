"""What each kind of matrix product costs, in floating-point operations.

A multiplication and the addition that goes with it are two operations.
"""

import math
from typing import NamedTuple

import numpy as np

from meshwright.program._program import Equation



class Work(NamedTuple):
    """The operations of one equation."""

    needed: int
    recomputed: int = 0
    """Those of a kernel that computes something a second time rather than keep it."""


def dot(eqn: Equation) -> Work:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    left, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    return Work(2 * math.prod(out) * math.prod(left[d] for d in contracted))


def ragged_dot(eqn: Equation) -> Work:
    """Each row meets the matrix of its own group alone: as many operations as with one matrix for all."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    left, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    each = 2 * math.prod(out) * math.prod(left[d] for d in contracted)
    # The gradient for the matrices: an output for each group, which the rows are divided among.
    divided = set(numbers.lhs_ragged_dimensions) <= set(contracted)
    return Work(each // eqn.invars[2].aval.shape[-1] if divided else each)


def convolution(eqn: Equation) -> Work:
    """Count products with elements that are there: neither padding, nor between dilated ones.

    So does XLA, and so a convolution and its two gradients cost the same.
    """
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    image, kernel, out = (x.aval.shape for x in (*eqn.invars[:2], *eqn.outvars))
    pairs = (
        _pairs(out[o], kernel[k], image[i], *window)
        for o, k, i, *window in zip(
            numbers.out_spec[2:],
            numbers.rhs_spec[2:],
            numbers.lhs_spec[2:],
            params["window_strides"],
            params["rhs_dilation"],
            params["lhs_dilation"],
            (low for low, _ in params["padding"]),
            strict=True,
        )
    )
    outputs = math.prod(out[d] for d in numbers.out_spec[:2])
    return Work(2 * outputs * kernel[numbers.rhs_spec[1]] * math.prod(pairs))


def _pairs(
    num_outputs: int, num_taps: int, size: int, stride: int, tap_step: int, dilation: int, padding: int
) -> int:
    """Return how many pairs of an output and a tap, along one dimension, meet an element of the image."""
    outputs, taps = stride * np.arange(num_outputs), tap_step * np.arange(num_taps)
    few, many = sorted((outputs, taps), key=len)
    found = 0
    for position in few:  # rather than all pairs at once: in a gradient both may be long
        at = many + (position - padding)
        found += int(np.sum((at >= 0) & (at < dilation * size) & (at % dilation == 0)))
    return found


def attention(eqn: Equation) -> Work:
    """Queries times keys, and weights times values: all of them, masked ones too."""
    inner, outer = _attention_products(eqn)
    return Work(inner + outer)


def attention_gradient(eqn: Equation) -> Work:
    """Two products for each one of the forward pass; the weights, which were not kept, are made again."""
    inner, outer = _attention_products(eqn)
    return Work(2 * (inner + outer), recomputed=inner)


def _attention_products(eqn: Equation) -> tuple[int, int]:
    query, key, value = (x.aval.shape for x in eqn.invars[:3])
    heads_first = eqn.params["layout"] == 1  # [batch, heads, length, head], else [batch, length, heads, head]
    length = 2 if heads_first else 1
    pairs = math.prod(query[:3]) * key[length]
    return 2 * pairs * query[3], 2 * pairs * value[3]


def dtype_of(eqn: Equation) -> str:
    """Return what the operands are multiplied in: the wider of their dtypes."""
    dtypes = [x.aval.dtype for x in eqn.invars[:2]]
    return max(dtypes, key=lambda dtype: dtype.itemsize).name
