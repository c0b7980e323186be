"""Rules that say which dimensions of an operation's operands and results correspond, as in Shardy.

    dot_general [B, K] × [K, N] -> [B, N]     "b k, k n -> b n", and k is summed over
    reshape     [B, T, D] -> [B * T, D]       "b t d -> (b t) d"

Dimensions with the same letter correspond. An operation is local if they are split over the same mesh axes.
A dimension without a letter corresponds to no other. `_primitives.py` lists the rule of each primitive.
See https://openxla.org/shardy/sharding_representation.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Shapes = Sequence[tuple[int, ...]]
Dims = tuple[tuple[int, ...], ...]
"""The letters of each dimension of an array, as numbers. Most have one; merged dimensions have several, the
slowest first.
"""
Letters = list[int | None]
"""A letter for each dimension, if no dimensions are merged."""
# First number of the letters of a second operand, and of those of looked-up rows.
SECOND, ROWS = 100, 200


class Rule(NamedTuple):
    """Correspondence between the dimensions of one operation's operands and results."""

    inputs: Sequence[Dims]
    """Letters of each operand's dimensions."""
    outputs: Sequence[Dims]
    """Letters of each result's dimensions."""
    summed: frozenset[int] = frozenset()
    """Letters that are reduced over: if such a dimension is split, each device has a partial sum."""
    whole: frozenset[int] = frozenset()
    """Letters that cannot be split while the operation runs, because it works along their dimensions."""
    pieces: Sequence[tuple[int, int | None]] = ()
    """Pairs of a dimension's letter and the letter of a slice of it; None if the slice has no dimension."""
    sizes: Mapping[int, int] = {}
    """Sizes of letters that share a dimension with others."""
    is_known: bool = True
    """False if the rule is guessed from shapes and they are ambiguous."""


Dimensions = Callable[[Any, Shapes, Shapes], Rule]
"""Function from the parameters of an equation and the shapes of operands and results to the rule."""


def elementwise(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep dimensions in place if they have one size in all arrays; size 1 matches any size."""
    return _in_place(inputs, outputs, any_size=frozenset({1}))


def resized(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep dimensions in place; those whose size changes must be whole."""
    return _in_place(inputs, outputs)._replace(is_known=True)


def sliced(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep dimensions in place; those whose size changes are cut into pieces, or made of pieces."""
    rule, pieces = resized(params, inputs, outputs), []
    arrays = [list(zip(*side, strict=True)) for side in ((inputs, rule.inputs), (outputs, rule.outputs))]
    for (old_shape, old_letters), (new_shape, new_letters) in itertools.product(*arrays):
        for size, letter, new_size, new in zip(old_shape, old_letters, new_shape, new_letters, strict=False):
            if letter != new:
                pieces.append((*letter, *new) if size > new_size else (*new, *letter))
    return rule._replace(pieces=pieces)


def along(parameter: str) -> Dimensions:
    """Keep dimensions in place; the one that a parameter names must be whole."""

    def dimensions(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
        rule = elementwise(params, inputs, outputs)
        return rule._replace(whole=rule.whole.union(rule.inputs[0][params[parameter]]))

    return dimensions


def matrices(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Keep dimensions in place; the last two must be whole, and those of a Fourier transform."""
    rule, last = elementwise(params, inputs, outputs), len(params.get("fft_lengths", (0, 0)))
    return rule._replace(whole=rule.whole.union(*(dim for array in rule.inputs for dim in array[-last:])))


def one_by_one(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Give each result the dimensions of the operand at the same position."""
    letters = itertools.count()
    dims = [letters_of([next(letters) for _ in shape]) for shape in inputs]
    return Rule(dims, dims)


def _in_place(inputs: Shapes, outputs: Shapes, any_size: frozenset[int] = frozenset()) -> Rule:
    """Return a rule with a letter for each size that a dimension has on both sides, or everywhere."""
    rank = max((len(shape) for shape in (*inputs, *outputs)), default=0)
    operands, results = ([shape for shape in side if len(shape) == rank] for side in (inputs, outputs))
    sizes = [{shape[d] for shape in (*operands, *results)} - any_size for d in range(rank)]
    on_both_sides = [{shape[d] for shape in operands} & {shape[d] for shape in results} for d in range(rank)]
    letters: dict[tuple[int, ...], int] = defaultdict(itertools.count().__next__)

    def dims(number: int, shape: tuple[int, ...]) -> Dims:
        if len(shape) < rank:
            return no_letters(shape)
        keys = (
            (d, size) if size in on_both_sides[d] or len(sizes[d]) == 1 else (d, size, number)
            for d, size in enumerate(shape)
        )
        return tuple((letters[key],) if key[1] in sizes[key[0]] else () for key in keys)

    arrays = [dims(number, shape) for number, shape in enumerate((*inputs, *outputs))]
    whole = frozenset(letter for (d, *_), letter in letters.items() if len(sizes[d]) > 1)
    is_known = not whole and {len(shape) for shape in inputs} <= {0, rank}
    return Rule(arrays[: len(inputs)], arrays[len(inputs) :], whole=whole, is_known=is_known)


def gather(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Rule of a lookup: if looked-up rows are split, each device finds its own, and results are summed."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batching = numbers.operand_batching_dims
    window_dims = [d for d in range(len(inputs[0])) if d not in {*numbers.collapsed_slice_dims, *batching}]
    out, array = blanks(*outputs, inputs[0])
    for d, source in zip(numbers.offset_dims, window_dims, strict=True):
        if sizes[source] == inputs[0][source]:
            out[d] = array[source] = d
    batch_dims = [d for d in range(len(out)) if d not in numbers.offset_dims]
    for i, d in enumerate(batch_dims):
        out[d] = SECOND + i
    for mine, theirs in zip(batching, numbers.start_indices_batching_dims, strict=True):
        array[mine] = SECOND + theirs
    rows = {ROWS + d: d for d in numbers.collapsed_slice_dims}
    for letter, d in rows.items():
        array[d] = letter
    indices = letters_of([*(SECOND + i for i in range(len(batch_dims))), None])
    return Rule([letters_of(array), indices], [letters_of(out)], frozenset(rows))


def scatter(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Rule of a lookup's gradient: each device takes updates of its own rows; split updates are summed."""
    numbers = params["dimension_numbers"]
    batching = numbers.operand_batching_dims
    array, (updates,) = list(range(len(inputs[0]))), blanks(inputs[2])
    window_dims = [d for d in array if d not in {*numbers.inserted_window_dims, *batching}]
    windows = dict(zip(numbers.update_window_dims, window_dims, strict=True))
    whole = {source for d, source in windows.items() if inputs[2][d] != inputs[0][source]}
    for d in windows.keys() - {d for d, source in windows.items() if source in whole}:
        updates[d] = windows[d]
    batch_dims = [d for d in range(len(updates)) if d not in windows]
    indices = [SECOND + i for i in range(len(batch_dims))]
    for mine, theirs in zip(batching, numbers.scatter_indices_batching_dims, strict=True):
        indices[theirs] = mine
    for i, d in enumerate(batch_dims):
        updates[d] = indices[i]
    summed = frozenset(x for x in indices if x >= SECOND)
    of_all = [letters_of(array), letters_of([*indices, None]), letters_of(updates)]
    return Rule(of_all, [letters_of(array)], summed, frozenset(whole))


def reduction(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    rule = arg_reduction(params, inputs, outputs)
    return rule._replace(summed=rule.whole, whole=frozenset())


def arg_reduction(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    axes = frozenset(params["axes"])
    out = letters_of([d for d in range(len(inputs[0])) if d not in axes])
    return Rule([letters_of(range(len(shape))) for shape in inputs], [out] * len(outputs), whole=axes)


def broadcast(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    out, positions = outputs[0], params["broadcast_dimensions"]
    array = letters_of([d if out[d] == size else None for size, d in zip(inputs[0], positions, strict=True)])
    return Rule([array, *map(no_letters, inputs[1:])], [letters_of(range(len(out)))])


def transpose(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    return Rule([letters_of(range(len(inputs[0])))], [letters_of(params["permutation"])])


def squeeze(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    rank = len(inputs[0])
    dropped = {d % rank for d in params["dimensions"]}
    return Rule([letters_of(range(rank))], [letters_of([d for d in range(rank) if d not in dropped])])


def stack(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    out: Letters = list(range(len(inputs[0])))
    out.insert(params["axis"] % len(outputs[0]), None)
    return Rule([letters_of(range(len(inputs[0])))] * len(inputs), [letters_of(out)])


def unstack(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    letters, axis = list(range(len(inputs[0]))), params["axis"] % len(inputs[0])
    out = letters_of([d for d in letters if d != axis])
    return Rule([letters_of(letters)], [out] * len(outputs), whole=frozenset({axis}), pieces=[(axis, None)])


def reshape(params: Any, inputs: Shapes, outputs: Shapes) -> Rule:
    """Cut dimensions where one of either side ends; if the parts do not fit, no dimensions correspond."""
    spans = [_spans(inputs[0]), _spans(outputs[0])]
    parts = list(itertools.pairwise(sorted({1, *(end for side in spans for _, end in side)})))
    fitting = {letter for letter, (start, end) in enumerate(parts) if end % start == 0}

    def letters(start: int, end: int) -> tuple[int, ...]:
        inner = tuple(letter for letter, (first, _) in enumerate(parts) if start <= first < end)
        return inner if fitting.issuperset(inner) else ()

    operand, result = (tuple(letters(*span) for span in side) for side in spans)
    whole = set(itertools.chain(*operand)) ^ set(itertools.chain(*result))
    sizes = {letter: end // start for letter, (start, end) in enumerate(parts)}
    return Rule([operand], [result], whole=frozenset(whole), sizes=sizes)


def _spans(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return for each dimension the number of elements up to its start and up to its end."""
    ends = [math.prod(max(size, 1) for size in shape[: d + 1]) for d in range(len(shape))]
    return list(zip([1, *ends], ends, strict=False))


def blanks(*shapes: tuple[int, ...]) -> list[Letters]:
    return [[None] * len(shape) for shape in shapes]


def no_letters(shape: tuple[int, ...]) -> Dims:
    return ((),) * len(shape)


def letters_of(letters: Iterable[int | None]) -> Dims:
    return tuple(() if letter is None else (letter,) for letter in letters)
