"""The split of an operation's work over devices: the dimension that each mesh axis splits while it runs.

Operands and results may ask for different dimensions, as when weights are split over the axes of the batch.
The dimension that most of them ask for is taken. XLA does so even if the batch is so small that sending it
to the weights would be cheaper. In a tie, the dimension that exchanges fewest bytes is taken.
"""

from collections.abc import Iterable
from functools import lru_cache

from meshwright.plan._estimate._propagation import Letters, Propagation, Spec, Splits
from meshwright.program._internal import Operation

Shares = dict[str, int]
"""For each mesh axis, the letter of the dimensions that it splits."""


def shares_of(operation: Operation, specs: Propagation) -> Shares:
    """Return how the work of an operation is split; axes that split none of its dimensions are left out."""
    rule = specs.rule(operation)
    return {
        axis: min(letters, key=lambda letter: _sent(axis, letter, operation, rule, specs))
        if len(letters) > 1
        else letters[0]
        for axis, letters in _letters(operation, specs).items()
    }


def shared_spec(letters: Letters, shares: Shares, like: Spec) -> Spec:
    """Return the spec of an operand or result during an operation, with axes in the order of `like`."""
    return _shared_spec(letters, tuple(shares.items()), like) if shares else ((),) * len(letters)


@lru_cache(4096)
def _shared_spec(letters: Letters, shares: tuple[tuple[str, int], ...], like: Spec) -> Spec:
    """Return a spec from a cache, as operations in a row often repeat it."""
    of_letter: dict[int | None, list[str]] = {}
    order = [axis for dim in like for axis in dim]
    for axis, letter in sorted(shares, key=lambda x: order.index(x[0]) if x[0] in order else len(order)):
        of_letter.setdefault(letter, []).append(axis)
    return tuple([tuple(of_letter.get(letter, ())) for letter in letters])


def _letters(operation: Operation, specs: Propagation) -> dict[str, list[int]]:
    """Return for each axis the letters that most operands and results want on it; several in a tie."""
    votes: dict[str, dict[int, int]] = {}
    for value, letters in specs.sides(operation):
        for letter, axes in zip(letters, specs.specs.get(value, ()), strict=False):  # none: it is not split
            for axis in axes:
                of_axis = votes.setdefault(axis, {})
                if letter is not None:
                    of_axis[letter] = of_axis.get(letter, 0) + 1
    return {
        axis: [letter for letter, number in of_axis.items() if number == max(of_axis.values())]
        for axis, of_axis in votes.items()
        if of_axis
    }


def _letter_on(axis: str, letters: Iterable[int | None], spec: Spec) -> int | None:
    return next((letter for letter, dim in zip(letters, spec, strict=True) if axis in dim), None)


def _sent(axis: str, letter: int, operation: Operation, rule: Splits, specs: Propagation) -> float:
    """Return the approximate bytes that are sent if `axis` splits the dimensions of `letter`."""
    n, total = specs.sizes[axis], 0.0
    for value, letters in zip(operation.inputs, rule.inputs, strict=True):
        if _is_on(axis, specs.spec(value)) and _letter_on(axis, letters, specs.spec(value)) != letter:
            total += specs.nbytes(value) * (1 / n if letter in letters else 1) * (n - 1)
    for value, letters in zip(operation.outputs, rule.outputs, strict=True):
        is_on, nbytes = _is_on(axis, specs.spec(value)), specs.nbytes(value)
        if letter in rule.summed:
            total += nbytes * (n - 1) if is_on else 2 * nbytes
        elif letter in letters and _letter_on(axis, letters, specs.spec(value)) != letter:
            total += nbytes * (1 / n if is_on else 1) * (n - 1)
    return total


def _is_on(axis: str, spec: Spec) -> bool:
    return any(axis in dim for dim in spec)
