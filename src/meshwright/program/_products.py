"""Matrix products: the correspondence between their dimensions, and their floating-point operations.

A multiplication with its addition counts as two operations.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshwright.program._dimensions import Dims, Letters, Rule, Shapes, blanks, letters_of, no_letters
from meshwright.program._jaxprs import Equation

# First number of the letters that only the right operand has, and the number of the groups of rows.
RIGHT, GROUPS = 100, 300
BATCH, HEADS, SHARE, QUERIES, KEYS, INNER, OUTER = range(7)
"""The letters of attention. `SHARE` heads of queries share one head of keys; `INNER` are the features of
queries and keys, `OUTER` those of values."""


def dot(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    contracted, batch = params["dimension_numbers"]
    lhs, rhs, out = _product([len(shape) for shape in inputs[:2]], contracted, batch)
    summed = frozenset(lhs[d] for d in contracted[0])
    return Rule([letters_of(lhs), letters_of(rhs)], [letters_of(out)], summed)


class Convolution(NamedTuple):
    """The dimensions of a convolution: of the image, the kernel and the result, those of space last."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    batch_groups: int
    """The groups of the batch, each of which meets features of its own; 1 but in gradients of kernels."""


def convolution_of(eqn: Equation) -> Convolution | None:
    """Return the dimensions of a convolution; None for all else."""
    if eqn.primitive.name != "conv_general_dilated":
        return None
    image, kernel, result = eqn.params["dimension_numbers"]
    return Convolution(image, kernel, result, eqn.params["batch_group_count"])


def ragged_dot(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """[rows, in] × [experts, in, out] -> [rows, out].

    Experts are summed over, but must be whole on each device: XLA gathers them.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    groups = list(numbers.rhs_group_dimensions)
    contracted, batch = numbers.dot_dimension_numbers
    matrix_dims = [d for d in range(len(inputs[1])) if d not in groups]
    narrow = [tuple(matrix_dims.index(d) for d in dims) for dims in (contracted[1], batch[1])]
    ranks = len(inputs[0]), len(matrix_dims)
    lhs, rest, out = _product(ranks, (contracted[0], narrow[0]), (batch[0], narrow[1]))
    rhs: Letters = [GROUPS] * len(inputs[1])
    for letter, d in zip(rest, matrix_dims, strict=True):
        rhs[d] = letter
    # The gradient of the matrices has a result for each expert.
    experts = [] if groups else [GROUPS]
    summed = frozenset((*(lhs[d] for d in contracted[0]), *([GROUPS] if groups else ())))
    of_all = [letters_of(lhs), letters_of(rhs), *map(no_letters, inputs[2:])]
    return Rule(of_all, [letters_of([*experts, *out])], summed, whole=frozenset({GROUPS}))


def _product(ranks: Sequence[int], contracted: Any, batch: Any) -> tuple[list[int], list[int], list[int]]:
    """Return the letters of two operands and of their product."""
    lhs, rhs = list(range(ranks[0])), [RIGHT + d for d in range(ranks[1])]
    for mine, theirs in (*zip(*contracted, strict=True), *zip(*batch, strict=True)):
        rhs[theirs] = lhs[mine]
    free = [
        [x for d, x in enumerate(side) if d not in {*contracted[i], *batch[i]}]
        for i, side in enumerate((lhs, rhs))
    ]
    return lhs, rhs, [*(lhs[d] for d in batch[0]), *free[0], *free[1]]


def convolution(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    numbers = params["dimension_numbers"]
    image, kernel, out = blanks(*inputs[:2], *outputs)
    batch, features_out, features_in = 0, 1, 2
    if params["batch_group_count"] == 1:
        image[numbers.lhs_spec[0]] = out[numbers.out_spec[0]] = batch
    if params["feature_group_count"] == 1:
        image[numbers.lhs_spec[1]] = kernel[numbers.rhs_spec[1]] = features_in
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        kernel[numbers.rhs_spec[0]] = out[numbers.out_spec[1]] = features_out
    return Rule([letters_of(image), letters_of(kernel)], [letters_of(out)], frozenset({features_in}))


def attention(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep the batch and the heads; several heads of queries may share one of keys and values."""
    rule, out = _attention(params, inputs, inputs[3:])
    return rule._replace(outputs=[out, *map(no_letters, outputs[1:])])


def attention_gradient(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep the same dimensions as `attention`.

    The results are gradients of the first operands; the last two operands have the dimensions of attention's
    result.
    """
    rule, out = _attention(params, inputs, inputs[3:-2])
    of_all = [*rule.inputs, out, out][: len(inputs)]
    return rule._replace(inputs=of_all, outputs=[*rule.inputs[:3], *map(no_letters, outputs[3:])])


def _attention(params: Any, inputs: Shapes, rest: Shapes) -> tuple[Rule, Dims]:
    """Return the rule of queries, keys, values and other operands, and the dimensions of the result."""
    # [batch, heads, length, head], else [batch, length, heads, head].
    heads_first = params["layout"] == 1
    query_heads, key_heads = (shape[1 if heads_first else 2] for shape in inputs[:2])

    def dims(heads: tuple[int, ...], length: int, size: int) -> Dims:
        middle = (heads, (length,)) if heads_first else ((length,), heads)
        return ((BATCH,), *middle, (size,))

    of_query = (HEADS, SHARE) if query_heads > key_heads else (HEADS,)
    of_all = [dims(of_query, QUERIES, INNER), dims((HEADS,), KEYS, INNER), dims((HEADS,), KEYS, OUTER)]
    sizes = {HEADS: key_heads, SHARE: query_heads // key_heads}
    summed, whole = frozenset({INNER, KEYS}), frozenset({QUERIES, KEYS, INNER, OUTER})
    return Rule([*of_all, *map(no_letters, rest)], [], summed, whole, sizes=sizes), dims(
        of_query, QUERIES, OUTER
    )


class Work(NamedTuple):
    """Floating-point operations of one equation."""

    needed: int
    """Operations without recomputation."""
    recomputed: int = 0
    """Operations that a kernel repeats instead of keeping their results."""


def every_pair(eqn: Equation, rule: Rule) -> Work:
    """Return two operations for each combination of indices; rows meet the matrix of their own group only."""
    sizes = _sizes(eqn, rule)
    sizes.pop(GROUPS, None)
    return Work(2 * math.prod(sizes.values()))


def _sizes(eqn: Equation, rule: Rule) -> dict[int, int]:
    """Return the sizes of all letters of operands."""
    sized = (zip(dims, x.aval.shape, strict=True) for dims, x in zip(rule.inputs, eqn.invars, strict=True))
    return {letter: rule.sizes.get(letter, size) for array in sized for dim, size in array for letter in dim}


def convolution_work(eqn: Equation, rule: Rule) -> Work:
    """Count products with existing elements only: neither padding nor the gaps of dilation.

    XLA counts in the same way, and so a convolution and its two gradients cost the same.
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
    """Return the number of pairs of an output and a tap, in one dimension, that meet an image element."""
    outputs, taps = stride * np.arange(num_outputs), tap_step * np.arange(num_taps)
    few, many = sorted((outputs, taps), key=len)
    count = 0
    # Not all pairs at once: in a gradient both lists may be long.
    for position in few:
        positions = many + (position - padding)
        count += int(np.sum((positions >= 0) & (positions < dilation * size) & (positions % dilation == 0)))
    return count


def attention_work(eqn: Equation, rule: Rule) -> Work:
    """Count queries times keys and weights times values, in full, whatever the mask."""
    inner, outer = _attention_products(eqn, rule)
    return Work(inner + outer)


def attention_gradient_work(eqn: Equation, rule: Rule) -> Work:
    """Count two products for each one of the forward pass, and the attention weights computed again."""
    inner, outer = _attention_products(eqn, rule)
    return Work(2 * (inner + outer), recomputed=inner)


def _attention_products(eqn: Equation, rule: Rule) -> tuple[int, int]:
    sizes = _sizes(eqn, rule)
    inner, outer = sizes.pop(INNER), sizes.pop(OUTER)
    return 2 * math.prod(sizes.values()) * inner, 2 * math.prod(sizes.values()) * outer


def dtype_of(eqn: Equation) -> str:
    """Return the dtype of the multiplication: the wider one of the operands."""
    dtypes = [x.aval.dtype for x in eqn.invars[:2]]
    return max(dtypes, key=lambda dtype: dtype.itemsize).name
