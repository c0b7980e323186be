"""The rows of a batch that make a step not finite, found by trying batches of some of them alone."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from meshwright.base._internal import PyTree

_MOST_TRIALS = 200
_SAMPLED = 4
"""The number of rows that are tried alone before all are suspected of the same."""


class Guilty(NamedTuple):
    """The rows of a batch that make a step not finite."""

    rows: list[int] | None
    """The rows that do it, each alone; all rows if it is not the examples. None if no row was found."""
    are_all: bool
    """False if there may be more rows, as the trials were used up."""


def guilty_rows(is_bad: Callable[[PyTree], bool], batch: PyTree) -> Guilty:
    """Return the rows each of which, repeated over a whole batch, makes the step not finite.

    All rows are returned if each that is tried does: then it is not the examples.
    """
    size = len(jax.tree.leaves(batch)[0])
    left, are_all = _MOST_TRIALS, True

    def tried(rows: np.ndarray) -> bool:
        nonlocal left
        left -= 1
        return is_bad(jax.tree.map(lambda x: np.asarray(x)[np.resize(rows, size)], batch))

    def search(rows: np.ndarray) -> list[int]:
        nonlocal are_all
        if left <= 0:
            are_all = False
            return []
        if not tried(rows):
            return []
        if len(rows) == 1:
            return [int(rows[0])]
        middle = len(rows) // 2
        return search(rows[:middle]) + search(rows[middle:])

    sampled = np.unique(np.linspace(0, size - 1, min(_SAMPLED, size)).astype(int))
    if all(tried(sampled[i : i + 1]) for i in range(len(sampled))):
        return Guilty(list(range(size)), are_all=True)
    found = search(np.arange(size))
    return Guilty(found or None, are_all)
