"""In what two checkpoints differ."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.arrays._chunks import slabs
from meshwright.arrays._lazy import LazyArray
from meshwright.arrays._source import Source, stored_names

_AT_A_TIME = 1 << 18  # elements, which are compared as numbers of 16 or 32 bytes


@dataclass(frozen=True)
class Difference:
    """How one array differs."""

    name: str
    a: LazyArray | None
    """Its shape and dtype in the first checkpoint; None where it is not there."""
    b: LazyArray | None
    """And in the second."""
    num_differing: int | None = None
    """Elements of other bits, or of another value where the dtypes differ; None for other shapes."""
    largest: float | None = None
    """The largest absolute difference of two elements; NaN where only one of them is."""


def diff(a: Source, b: Source) -> list[Difference]:
    """Return the arrays in which two checkpoints differ: in being there, shape, dtype or values.

    In constant memory, and in the order of `a`; what only `b` has comes last. Leaves are found where one
    format spells their names otherwise; they are called as in `a`.

    Raises:
      DamagedError: A piece of one is damaged.
    """
    in_a, in_b = a.arrays(), _called_as(a, b)
    names = dict.fromkeys([*in_a, *in_b])
    found = [_difference(name, in_a.get(name), in_b.get(name)) for name in names]
    return [difference for difference in found if difference]


def _called_as(a: Source, b: Source) -> dict[str, LazyArray]:
    """Return the arrays of `b` by the names that `a` has for them, as far as it has them."""
    in_a, in_b = a.arrays(), b.arrays()
    there = {theirs: name for name, theirs in stored_names(b, in_a).items() if theirs in in_b}
    here = {name: ours for name, ours in stored_names(a, in_b).items() if ours in in_a}
    ours = here | there
    return {ours.get(name, name): array for name, array in in_b.items()}


def _difference(name: str, left: LazyArray | None, right: LazyArray | None) -> Difference | None:
    if left is None or right is None or left.shape != right.shape:
        return Difference(name, left, right)
    num_differing, largest = 0, 0.0
    for index in slabs(left.shape, max(left.dtype.itemsize, right.dtype.itemsize)):
        a, b = left.read(index).reshape(-1), right.read(index).reshape(-1)
        for start in range(0, a.size, _AT_A_TIME):
            part = slice(start, start + _AT_A_TIME)
            num, most = _compare(a[part], b[part])
            num_differing, largest = num_differing + num, float(np.maximum(largest, most))
    if num_differing == 0 and left.dtype == right.dtype:
        return None
    return Difference(name, left, right, num_differing, largest)


def _compare(left: np.ndarray, right: np.ndarray) -> tuple[int, float]:
    """Return how many elements differ, and the largest difference."""
    differs = _other_bits(left, right) if left.dtype == right.dtype else _other_values(left, right)
    num = int(np.count_nonzero(differs))
    if num == 0:
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        return num, float(np.abs(_wide(left)[differs] - _wide(right)[differs]).max())


def _other_bits(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (_elements(left) != _elements(right)).any(axis=1)


def _elements(array: np.ndarray) -> np.ndarray:
    """Return the bytes of each element as one row."""
    return array.reshape(-1, 1).view(np.uint8)


def _other_values(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    a, b = _wide(left), _wide(right)
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def _wide(array: np.ndarray) -> np.ndarray[Any, Any]:
    """Return the elements as numbers of which the difference is one as well, also for integers of 64 bits."""
    return array.reshape(-1).astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)
