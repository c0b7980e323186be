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
    differences = [_difference(name, in_a.get(name), in_b.get(name)) for name in names]
    return [difference for difference in differences if difference]


def _called_as(a: Source, b: Source) -> dict[str, LazyArray]:
    """Return the arrays of `b` under the names that `a` has for them, or their own if it has none."""
    in_a, in_b = a.arrays(), b.arrays()
    names_in_b = {theirs: name for name, theirs in stored_names(b, in_a).items() if theirs in in_b}
    names_in_a = {name: stored for name, stored in stored_names(a, in_b).items() if stored in in_a}
    names = names_in_a | names_in_b
    return {names.get(name, name): array for name, array in in_b.items()}


def _difference(name: str, first: LazyArray | None, second: LazyArray | None) -> Difference | None:
    if first is None or second is None or first.shape != second.shape:
        return Difference(name, first, second)
    num_differing, largest = 0, 0.0
    for index in slabs(first.shape, max(first.dtype.itemsize, second.dtype.itemsize)):
        a, b = first.read(index).reshape(-1), second.read(index).reshape(-1)
        for start in range(0, a.size, _AT_A_TIME):
            part = slice(start, start + _AT_A_TIME)
            num, most = _compare(a[part], b[part])
            num_differing, largest = num_differing + num, float(np.maximum(largest, most))
    if num_differing == 0 and first.dtype == second.dtype:
        return None
    return Difference(name, first, second, num_differing, largest)


def _compare(first: np.ndarray, second: np.ndarray) -> tuple[int, float]:
    """Return how many elements differ, and the largest difference."""
    if first.dtype == second.dtype:
        # Bits are compared, so that NaN is equal to the same NaN, and 0 differs from -0.
        differs = (first.reshape(-1, 1).view(np.uint8) != second.reshape(-1, 1).view(np.uint8)).any(axis=1)
    else:
        differs = _other_values(first, second)
    num = int(np.count_nonzero(differs))
    if num == 0:
        return 0, 0.0
    with np.errstate(invalid="ignore"):
        return num, float(np.abs(_wide(first)[differs] - _wide(second)[differs]).max())


def _other_values(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    a, b = _wide(first), _wide(second)
    return ~((a == b) | (np.isnan(a) & np.isnan(b)))


def _wide(array: np.ndarray) -> np.ndarray[Any, Any]:
    """Return the elements in a type wide enough for exact differences, of 64-bit integers too."""
    # `longdouble` has 64 bits of mantissa on x86, so that differences of 64-bit integers are exact.
    return array.reshape(-1).astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)
