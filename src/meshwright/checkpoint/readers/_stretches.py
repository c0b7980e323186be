"""One array of several, each a stretch of its values in row-major order."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from meshwright.checkpoint._lazy import Index, LazyArray, shape_of


def joined(shape: tuple[int, ...], stretches: Sequence[LazyArray]) -> LazyArray:
    """Return the array of this shape that was cut into `stretches`, of one dimension each.

    Of a part, all from its first row to its last is read, rows being along the leading dimension.

    Raises:
      ValueError: They do not make such an array.
    """
    sizes = [math.prod(stretch.shape) for stretch in stretches]
    if sum(sizes) != math.prod(shape) or len({stretch.dtype for stretch in stretches}) != 1:
        raise ValueError(f"an array of shape {list(shape)} is cut into stretches of {sizes} values")
    starts = list(itertools.accumulate(sizes, initial=0))

    def between(first: int, last: int) -> np.ndarray:
        parts = [
            stretch.read((slice(max(first - start, 0), max(last - start, 0)),))
            for stretch, start in zip(stretches, starts[:-1], strict=True)
        ]
        return np.concatenate(parts)

    def read(index: Index) -> np.ndarray:
        rows = range(shape[0])[index[0]]
        row_size = math.prod(shape[1:])
        values = between(rows.start * row_size, rows.stop * row_size).reshape(len(rows), *shape[1:])
        return values[(slice(None), *index[1:])].reshape(shape_of(index, shape)).copy()

    return LazyArray(shape, stretches[0].dtype, read)
