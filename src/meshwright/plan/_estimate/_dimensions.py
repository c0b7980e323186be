"""Which dimensions of an operation's operands and results go together, as Shardy's sharding rules say it.

    dot_general [B, K] × [K, N] -> [B, N]     "b k, k n -> b n", and k is summed over

Dimensions that share a letter are split over the same axes of the mesh for the operation to be local. A
dimension without one must be whole. See https://openxla.org/shardy/propagation.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from meshwright.plan._estimate._program import Operation

Letters = tuple[int | None, ...]
"""Of each dimension of an array a number, that of the first operand's dimension if there is one; None for
a dimension that must be whole."""
SECOND, ROWS, GROUPS = 100, 200, 300
"""Where the numbers of other letters start: of a second operand, of looked-up rows, of groups of rows."""


class Rule(NamedTuple):
    """Of an operation."""

    inputs: list[Letters]
    outputs: list[Letters]
    summed: frozenset[int] = frozenset()
    """Letters of operands over which results are combined: split, they make partial sums."""
    known: bool = True

    @property
    def sides(self) -> list[Letters]:
        return [*self.inputs, *self.outputs]


def rule_of(operation: Operation) -> Rule:
    """Return how the dimensions of an operation without bodies go together."""
    shapes = [value.shape for value in operation.inputs], [value.shape for value in operation.outputs]
    handler = _HANDLERS.get(operation.kind)
    return handler(operation.eqn.params, *shapes) if handler else _alike(operation.kind, *shapes)


Shapes = Sequence[tuple[int, ...]]


def _alike(kind: str, inputs: Shapes, outputs: Shapes) -> Rule:
    """Each dimension that has one size in all arrays is kept; others must be whole, or are broadcast."""
    rank = max((len(shape) for shape in (*inputs, *outputs)), default=0)
    full = [shape for shape in (*inputs, *outputs) if len(shape) == rank]
    sizes = [{shape[d] for shape in full} - (set() if kind in _PARTS else {1}) for d in range(rank)]

    def of(shape: tuple[int, ...]) -> Letters:
        if len(shape) != rank:
            return (None,) * len(shape)
        return tuple(d if sizes[d] == {size} else None for d, size in enumerate(shape))

    known = kind in _PARTS or (all(len(of) < 2 for of in sizes) and {len(x) for x in inputs} <= {0, rank})
    return Rule([of(x) for x in inputs], [of(x) for x in outputs], known=known)


def _without(parameter: str) -> Callable[[Any, Shapes, Shapes], Rule]:
    """Keep dimensions but those along which an operation works, which must be whole."""

    def handle(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
        along = params[parameter] % len(inputs[0])
        letters = tuple(None if d == along else d for d in range(len(inputs[0])))
        return Rule([letters] * len(inputs), [letters] * len(outputs))

    return handle


def _dot(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    contracted, batch = params["dimension_numbers"]
    return _product(inputs[:2], contracted, batch)


def _product(inputs: Shapes, contracted: Any, batch: Any) -> Rule:
    left, right = list(range(len(inputs[0]))), [SECOND + d for d in range(len(inputs[1]))]
    for mine, theirs in (*zip(*contracted, strict=True), *zip(*batch, strict=True)):
        right[theirs] = left[mine]
    free = [
        [x for d, x in enumerate(side) if d not in {*contracted[i], *batch[i]}]
        for i, side in enumerate((left, right))
    ]
    out = (*(left[d] for d in batch[0]), *free[0], *free[1])
    return Rule([tuple(left), tuple(right)], [out], frozenset(left[d] for d in contracted[0]))


def _ragged_dot(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """[rows, in] × [experts, in, out] -> [rows, out]; where experts are split, a sum of what each has."""
    numbers = params["ragged_dot_dimension_numbers"]
    groups = list(numbers.rhs_group_dimensions)
    contracted, batch = numbers.dot_dimension_numbers
    kept = [d for d in range(len(inputs[1])) if d not in groups]
    narrow = [tuple(kept.index(d) for d in dims) for dims in (contracted[1], batch[1])]
    shapes = [inputs[0], tuple(inputs[1][d] for d in kept)]
    rule = _product(shapes, (contracted[0], narrow[0]), (batch[0], narrow[1]))
    right: list[int | None] = [GROUPS] * len(inputs[1])
    for letter, d in zip(rule.inputs[1], kept, strict=True):
        right[d] = letter
    rest = [(None,) * len(shape) for shape in inputs[2:]]
    experts = (GROUPS + 1,) if not groups else ()  # the gradient for the matrices: an output for each expert
    return Rule(
        [rule.inputs[0], tuple(right), *rest],
        [(*experts, *rule.outputs[0])],
        rule.summed | ({GROUPS} if groups else set()),
    )


def _convolution(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    numbers = params["dimension_numbers"]
    image, kernel, out = map(_unlettered, (*inputs[:2], *outputs))
    batch, features_out, features_in = 0, 1, 2
    if params["batch_group_count"] == 1:
        image[numbers.lhs_spec[0]] = out[numbers.out_spec[0]] = batch
    if params["feature_group_count"] == 1:
        image[numbers.lhs_spec[1]] = kernel[numbers.rhs_spec[1]] = features_in
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        kernel[numbers.rhs_spec[0]] = out[numbers.out_spec[1]] = features_out
    return Rule([tuple(image), tuple(kernel)], [tuple(out)], frozenset({features_in}))


def _gather(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """A lookup: where looked-up rows are split, each device finds what it has, and all is summed."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batching = numbers.operand_batching_dims
    kept = [d for d in range(len(inputs[0])) if d not in {*numbers.collapsed_slice_dims, *batching}]
    out, array = _unlettered(outputs[0]), _unlettered(inputs[0])
    for d, source in zip(numbers.offset_dims, kept, strict=True):
        if sizes[source] == inputs[0][source]:
            out[d] = array[source] = d
    places = [d for d in range(len(out)) if d not in numbers.offset_dims]
    for i, d in enumerate(places):
        out[d] = SECOND + i
    for mine, theirs in zip(batching, numbers.start_indices_batching_dims, strict=True):
        array[mine] = SECOND + theirs
    rows = {ROWS + d: d for d in numbers.collapsed_slice_dims}
    for letter, d in rows.items():
        array[d] = letter
    indices = (*(SECOND + i for i in range(len(places))), None)
    return Rule([tuple(array), indices], [tuple(out)], frozenset(rows))


def _scatter(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """The gradient of a lookup: a sum, where updates are split; and each device takes what is its own."""
    numbers = params["dimension_numbers"]
    batching = numbers.operand_batching_dims
    array = _unlettered(inputs[0])
    updates = _unlettered(inputs[2])
    array[:] = range(len(array))
    kept = [d for d in range(len(array)) if d not in {*numbers.inserted_window_dims, *batching}]
    for d, source in zip(numbers.update_window_dims, kept, strict=True):
        if inputs[2][d] == inputs[0][source]:
            updates[d] = source
        else:
            array[source] = None
    places = [d for d in range(len(updates)) if d not in numbers.update_window_dims]
    indices = [SECOND + i for i in range(len(places))]
    for mine, theirs in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        indices[theirs] = mine
    for i, d in enumerate(places):
        updates[d] = indices[i]
    summed = frozenset(x for x in indices if x >= SECOND)
    return Rule([tuple(array), (*indices, None), tuple(updates)], [tuple(array)], summed)


def _unlettered(shape: tuple[int, ...]) -> list[int | None]:
    return [None] * len(shape)


def _reduce(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    axes, letters = set(params["axes"]), tuple(range(len(inputs[0])))
    out = tuple(d for d in letters if d not in axes)
    return Rule([letters] * len(inputs), [out] * len(outputs), frozenset(axes))


def _arg_reduce(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    axes = set(params["axes"])
    letters = tuple(None if d in axes else d for d in range(len(inputs[0])))
    return Rule([letters], [tuple(d for d in letters if d is not None)])


def _broadcast(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    out, dims = outputs[0], params["broadcast_dimensions"]
    letters = tuple(d if out[d] == size else None for size, d in zip(inputs[0], dims, strict=True))
    return Rule([letters, *((None,) * len(x) for x in inputs[1:])], [tuple(range(len(out)))])


def _transpose(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    return Rule([tuple(range(len(inputs[0])))], [tuple(params["permutation"])])


def _squeeze(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    dropped = {d % len(inputs[0]) for d in params["dimensions"]}
    letters = tuple(range(len(inputs[0])))
    return Rule([letters], [tuple(d for d in letters if d not in dropped)])


def _stack(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    out: list[int | None] = list(range(len(inputs[0])))
    out.insert(params["axis"] % len(outputs[0]), None)
    return Rule([tuple(range(len(inputs[0])))] * len(inputs), [tuple(out)])


def _unstack(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    whole: list[int | None] = list(range(len(outputs[0])))
    whole.insert(params["axis"] % len(inputs[0]), None)
    return Rule([tuple(whole)], [tuple(range(len(outputs[0])))] * len(outputs))


def _reshape(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Where dimensions are merged or taken apart, the slowest one goes with the whole."""
    before, after = _unlettered(inputs[0]), _unlettered(outputs[0])
    for letter, (mine, theirs) in enumerate(_leading(inputs[0], outputs[0])):
        before[mine] = after[theirs] = letter
    return Rule([tuple(before), *((None,) * len(x) for x in inputs[1:])], [tuple(after)])


def _leading(before: tuple[int, ...], after: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    """Yield the first dimension of each group that makes up the same elements, on both sides."""
    mine, theirs = _ends(before), _ends(after)
    starts = {1}.union(mine.values()) & {1}.union(theirs.values())
    first = [
        {end // size: d for d, (size, end) in of} for of in (_sized(before, mine), _sized(after, theirs))
    ]
    for start in sorted(starts):
        if start in first[0] and start in first[1]:
            yield first[0][start], first[1][start]


def _ends(shape: tuple[int, ...]) -> dict[int, int]:
    """Return for each dimension longer than 1 the number of elements up to its end, slowest first."""
    return {d: math.prod(shape[: d + 1]) for d, size in enumerate(shape) if size > 1}


def _sized(shape: tuple[int, ...], ends: dict[int, int]) -> Iterable[tuple[int, tuple[int, int]]]:
    return ((d, (shape[d], end)) for d, end in ends.items())


_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")
_CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
_SCATTERS = (
    "scatter-add",
    "scatter_add",
    "scatter",
    "scatter_mul",
    "scatter_min",
    "scatter_max",
    "scatter_sub",
)
_PARTS = {
    *(
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "iota",
        "pad",
        "rev",
        "slice",
        "split",
        "top_k",
    ),
    *("random_bits", "random_fold_in", "random_unwrap", "random_wrap", "threefry2x32"),
}
_HANDLERS: dict[str, Callable[[Any, Shapes, Shapes], Rule]] = {
    "argmax": _arg_reduce,
    "argmin": _arg_reduce,
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "gather": _gather,
    "ragged_dot_general": _ragged_dot,
    "reshape": _reshape,
    "sort": _without("dimension"),
    "squeeze": _squeeze,
    "stack": _stack,
    "transpose": _transpose,
    "unstack": _unstack,
    **dict.fromkeys(_CUMULATIVE, _without("axis")),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_SCATTERS, _scatter),
}
