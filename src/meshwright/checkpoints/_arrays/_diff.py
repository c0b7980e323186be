"""The differences between two checkpoints."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.checkpoints._arrays._chunks import slabs
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import Source, stored_names

_AT_A_TIME = 1 << 18  # elements; while they are compared, each takes 16 or 32 bytes


@dataclass(frozen=True)
class Difference:
    """An array that is not the same in two checkpoints."""

    name: str
    """The array's name, as in the first checkpoint that has it."""
    a: LazyArray | None
    """The array in the first checkpoint; None if it is missing there."""
    b: LazyArray | None
    """The array in the second checkpoint; None if it is missing there."""
    num_differing: int | None = None
    """The number of elements whose bits differ, or whose values do if the dtypes differ; None if the shapes
    differ."""
    largest: float | None = None
    """The largest absolute difference of two elements; NaN if only one of the two is NaN."""


def diff(a: Source, b: Source) -> list[Difference]:
    """Return the arrays that differ between two checkpoints in presence, shape, dtype or values.

    Works in constant memory. The order is that of `a`, and arrays that only `b` has come last. If the two
    formats write a name differently (`a/b` and `a.b`), it is still one array, named as in `a`.

    Args:
      a: The first checkpoint.
      b: The second checkpoint.

    Raises:
      DamagedError: A part of one is damaged.

    Example:
      >>> a = mw.checkpoints.as_source({"w": np.arange(3)}, "a")
      >>> b = mw.checkpoints.as_source({"w": np.array([0, 1, 5])}, "b")
      >>> [(x.name, x.num_differing, x.largest) for x in mw.checkpoints.diff(a, b)]
      [('w', 1, 3.0)]
    """
    in_a, in_b = a.arrays(), _called_as(a, b)
    names = dict.fromkeys([*in_a, *in_b])
    found = [_difference(name, in_a.get(name), in_b.get(name)) for name in names]
    return [difference for difference in found if difference]


def _called_as(a: Source, b: Source) -> dict[str, LazyArray]:
    """Return the arrays of `b` under the names that `a` has for them, or their own if it has none."""
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
    """Return the elements in a type wide enough for exact differences, of 64-bit integers too."""
    return array.reshape(-1).astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)
