"""By which letters the axes of a mesh may split the dimensions of an operation, while it runs."""

from collections.abc import Iterable
from typing import NamedTuple

from meshwright.program import Dims, Operation, rule_of

Letters = tuple[int | None, ...]
"""The letter of each dimension of an array; None for a dimension that must be whole."""


class Splits(NamedTuple):
    """The letters of all operands and results."""

    inputs: list[Letters]
    outputs: list[Letters]
    summed: frozenset[int]
    """Letters of operands over which results are combined: split, they make partial sums."""
    known: bool

    @property
    def sides(self) -> list[Letters]:
        return [*self.inputs, *self.outputs]


def splits_of(operation: Operation) -> Splits:
    """Return how an operation without bodies may be split. Of merged dimensions, only the slowest may be."""
    rule = rule_of(operation)
    whole = rule.whole.union(*(dim[1:] for dims in (*rule.inputs, *rule.outputs) for dim in dims))

    def letters(arrays: Iterable[Dims]) -> list[Letters]:
        return [tuple(dim[0] if dim and dim[0] not in whole else None for dim in dims) for dims in arrays]

    return Splits(letters(rule.inputs), letters(rule.outputs), rule.summed, rule.known)
