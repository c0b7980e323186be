"""Lazy arrays: shape and dtype are known, values are read when they are asked for."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from meshwright.errors import UsageError

Index = tuple[slice, ...]
"""A slice of step 1 for each dimension of an array."""

# Elements along each side of a tile that is transposed within the cache.
_TILE = 128
_PIECE_NBYTES = range(1 << 20, (64 << 20) + 1)


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array whose values are read on demand: `np.asarray` reads all of it, `read` a part.

    Values are read again each time, so the checkpoint that they come from must still be there. Slicing,
    `reshape`, `transpose`, `astype` and `view` return lazy arrays, and read nothing. Make your own from any
    function of an index.

    Example:
      >>> x = mw.checkpoints._internal.in_memory(np.arange(6).reshape(2, 3))
      >>> np.asarray(x[1].astype("float32"))
      array([3., 4., 5.], dtype=float32)
      >>> doubled = mw.checkpoints.LazyArray(x.shape, x.dtype, lambda index: 2 * x.read(index))
      >>> np.asarray(doubled)
      array([[ 0,  2,  4],
             [ 6,  8, 10]])
    """

    shape: tuple[int, ...]
    """The size of each dimension."""
    dtype: np.dtype
    """The dtype of the values that `read` returns."""
    read: Callable[[Index], np.ndarray] = field(repr=False)
    """Returns a part, given a slice of step 1 for each dimension, in memory of its own. `restore` calls it on
    several threads. It may have a method `parts`, which takes a list of indices, and reads shared chunks
    only once."""
    key_impl: str | None = None
    """The PRNG implementation if this array holds `jax.random.key_data`, whose last dimension is that of one
    key; otherwise None."""
    stored_chunks: tuple[int, ...] | None = None
    """The shape of the chunks in which it is stored, if it is: a chunk can only be read as a whole."""
    checksum: Callable[[], str] | None = field(default=None, repr=False)
    """Returns the checksum that was saved with the values it is made from; None if there is none."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of all values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Return the shape of the pieces in which a checkpoint saves it, of 1 to 64 MiB each.

        They are the stored chunks, if these have such a size; otherwise the array is cut along one dimension.
        An array that is smaller, or cannot be cut evenly, is one piece.
        """
        if self.stored_chunks and self._are_pieces(self.stored_chunks):
            return self.stored_chunks
        cuts = [
            (self.nbytes // size * part, -dim, part)
            for dim, size in enumerate(self.shape if self.nbytes > _PIECE_NBYTES[-1] else ())
            for part in _divisors(size)
            if self.nbytes // size * part in _PIECE_NBYTES
        ]
        _, minus_dim, part = max(cuts, default=(0, 0, None))
        return tuple(part if part and dim == -minus_dim else size for dim, size in enumerate(self.shape))

    def _are_pieces(self, shape: tuple[int, ...]) -> bool:
        is_even = all(piece and size % piece == 0 for size, piece in zip(self.shape, shape, strict=True))
        return is_even and math.prod(shape) * self.dtype.itemsize in _PIECE_NBYTES

    def read_parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; chunks that they share are read only once."""
        parts = getattr(self.read, "parts", None)
        return parts(indices) if parts and indices else [self.read(index) for index in indices]

    def astype(self, dtype: DTypeLike) -> Self:
        """Return the array in another dtype, lazily. Reading a value that does not fit is a `UsageError`."""
        # Casts load JAX, for which the list of runs does not wait.
        from meshwright.checkpoints._arrays._cast import converted

        target = np.dtype(dtype)
        return self.with_values(lambda part: converted("an array", part, target), target)

    def view(self, dtype: DTypeLike) -> Self:
        """Return the array with its bits reinterpreted as another dtype of the same size, lazily."""
        target = np.dtype(dtype)
        return self.with_values(lambda part: part.view(target), target)

    def with_values(self, change: Callable[[np.ndarray], np.ndarray], dtype: np.dtype) -> Self:
        """Return the array with `change` applied to each part that is read, lazily.

        `change` must keep the shape, and return the given dtype.
        """
        reader = _Derived(self, lambda index: index, lambda part, _: change(part))
        return dataclasses.replace(self, dtype=dtype, read=reader)

    def transpose(self) -> Self:
        """Return the array with its dimensions in the opposite order, lazily."""
        reader = _Derived(self, lambda index: index[::-1], lambda part, _: _transposed(part))
        return dataclasses.replace(self, shape=self.shape[::-1], read=reader, stored_chunks=None)

    def reshape(self, *shape: int) -> Self:
        """Return the array in another shape, lazily. Reading a part reads whole rows of the original.

        Raises:
          UsageError: The new shape has another number of elements.
        """
        if math.prod(shape) != math.prod(self.shape):
            raise UsageError(f"cannot reshape an array of shape {self.shape} to {shape}: the sizes differ.")
        if not self.shape or not shape or not math.prod(shape):
            return dataclasses.replace(
                self, shape=shape, read=lambda i: np.asarray(self).reshape(shape)[i], stored_chunks=None
            )
        width, new_width = math.prod(self.shape[1:]), math.prod(shape[1:])

        def bounds(index: Index) -> tuple[int, int]:
            rows = range(shape[0])[index[0]]
            return rows.start * new_width, max(rows.start, rows.stop) * new_width

        def rows_of(index: Index) -> Index:
            start, stop = bounds(index)
            return slice(start // width, -(-stop // width)), *(slice(None),) * (self.ndim - 1)

        def cut(rows: np.ndarray, index: Index) -> np.ndarray:
            start, stop = bounds(index)
            part = rows.reshape(-1)[start % width :][: stop - start].reshape(-1, *shape[1:])
            return part[:, *index[1:]]

        return dataclasses.replace(self, shape=shape, read=_Derived(self, rows_of, cut), stored_chunks=None)

    def __getitem__(self, index: Any) -> Self:
        """Return a part, lazily. `index` holds integers and slices of step 1."""
        picked = [_pick(size, part) for size, part in zip(self.shape, self._full(index), strict=True)]
        shape = tuple(len(part) for part in picked if isinstance(part, range))

        def within(index: Index) -> Index:
            parts = iter(index)
            among = [
                part[next(parts)] if isinstance(part, range) else range(part, part + 1) for part in picked
            ]
            return tuple(slice(part.start, part.stop) for part in among)

        reader = _Derived(self, within, lambda part, index: part.reshape(shape_of(index, shape)))
        return dataclasses.replace(self, shape=shape, read=reader, stored_chunks=None)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Read the whole array."""
        return self.read((slice(None),) * self.ndim).astype(dtype or self.dtype, copy=False)

    def _full(self, index: Any) -> tuple[Any, ...]:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > self.ndim:
            raise UsageError(f"{len(index)} indices are too many for an array of shape {self.shape}.")
        return index + (slice(None),) * (self.ndim - len(index))


@dataclass(frozen=True)
class _Derived:
    """The `read` of a lazy array that is computed from another one, part by part."""

    base: LazyArray
    within: Callable[[Index], Index]
    """Returns the index into `base` of the part that is needed."""
    make: Callable[[np.ndarray, Index], np.ndarray]
    """Returns the derived part, given that part of `base` and the index asked for."""

    def __call__(self, index: Index) -> np.ndarray:
        return self.make(self.base.read(self.within(index)), index)

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; `base` reads shared chunks only once."""
        read = self.base.read_parts([self.within(index) for index in indices])
        return [self.make(part, index) for part, index in zip(read, indices, strict=True)]


@dataclass(frozen=True)
class _Parts:
    """The `read` of a lazy array that is computed from several others."""

    parts: Callable[[Sequence[Index]], list[np.ndarray]]

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]


def in_memory(array: Any) -> LazyArray:
    """Return an array in memory, or a number, as a `LazyArray`."""
    array = array if hasattr(array, "dtype") else np.asarray(array)
    return LazyArray(array.shape, array.dtype, lambda index: np.array(array[index]))


def stack(arrays: Sequence[LazyArray], dim: int = 0) -> LazyArray:
    """Return arrays stacked along a new dimension, lazily.

    Args:
      arrays: One array or more, all of the same shape and dtype.
      dim: The new dimension, from 0 to the number of dimensions that an array has.

    Raises:
      UsageError: There are none, they differ in shape or dtype, or they have too few dimensions.

    Example:
      >>> layers = mw.checkpoints.as_source({"0/w": np.zeros(3), "1/w": np.ones(3)}, "the source").arrays()
      >>> mw.checkpoints.stack([layers["0/w"], layers["1/w"]]).shape
      (2, 3)
    """
    kinds = {(array.shape, array.dtype.name, array.key_impl) for array in arrays}
    if len(kinds) != 1:
        raise UsageError(
            f"cannot stack arrays of {len(kinds)} kinds; all must have one shape and dtype, and these have "
            f"{sorted(map(str, kinds))}."
        )
    part_shape, dtype, leading = arrays[0].shape, arrays[0].dtype, (slice(None),) * dim
    if dim > len(part_shape):
        raise UsageError(f"cannot stack arrays of shape {part_shape} along dimension {dim}.")
    shape = (*part_shape[:dim], len(arrays), *part_shape[dim:])

    def parts(indices: Sequence[Index]) -> list[np.ndarray]:
        outs = [np.empty(shape_of(index, shape), dtype) for index in indices]
        places = [range(len(arrays))[index[dim]] for index in indices]
        rest = [index[:dim] + index[dim + 1 :] for index in indices]
        for number, array in enumerate(arrays):
            overlapping = [out_number for out_number, among in enumerate(places) if number in among]
            for out_number, part in zip(
                overlapping, array.read_parts([rest[out_number] for out_number in overlapping]), strict=True
            ):
                outs[out_number][*leading, places[out_number].index(number)] = part
        return outs

    return dataclasses.replace(arrays[0], shape=shape, read=_Parts(parts), stored_chunks=None, checksum=None)


def concatenate(arrays: Sequence[LazyArray]) -> LazyArray:
    """Return arrays joined along their last dimension, lazily.

    Args:
      arrays: One array or more, of the same dtype and of the same shape but for the last dimension.

    Raises:
      UsageError: There are none, or they differ in dtype or in another dimension.

    Example:
      >>> parts = mw.checkpoints.as_source({"q": np.zeros((2, 3)), "k": np.ones((2, 1))}, "parts").arrays()
      >>> np.asarray(mw.checkpoints.concatenate([parts["q"], parts["k"]]))[0].tolist()
      [0.0, 0.0, 0.0, 1.0]
    """
    kinds = {(array.shape[:-1], array.dtype.name, array.ndim, array.key_impl) for array in arrays}
    if len(kinds) != 1:
        raise UsageError(
            f"cannot join arrays of {len(kinds)} kinds; only the last dimension may differ, and these have "
            f"{sorted(map(str, kinds))}."
        )
    ends = list(itertools.accumulate(array.shape[-1] for array in arrays))
    shape = (*arrays[0].shape[:-1], ends[-1])

    def within(index: Index, end: int, array: LazyArray) -> Index:
        columns, begin = range(ends[-1])[index[-1]], end - array.shape[-1]
        return (*index[:-1], slice(max(columns.start, begin) - begin, max(0, min(columns.stop, end) - begin)))

    def parts(indices: Sequence[Index]) -> list[np.ndarray]:
        pieces: list[list[np.ndarray]] = [[] for _ in indices]
        for end, array in zip(ends, arrays, strict=True):
            columns = {number: within(index, end, array) for number, index in enumerate(indices)}
            columns = {number: index for number, index in columns.items() if index[-1].start < index[-1].stop}
            for number, part in zip(columns, array.read_parts(list(columns.values())), strict=True):
                pieces[number].append(part)
        return [
            np.concatenate(columns, axis=-1) if columns else np.empty(shape_of(index, shape), arrays[0].dtype)
            for columns, index in zip(pieces, indices, strict=True)
        ]

    return dataclasses.replace(arrays[0], shape=shape, read=_Parts(parts), stored_chunks=None, checksum=None)


def shape_of(index: Index, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the part `index` of an array of the given shape."""
    return tuple(len(range(size)[part]) for size, part in zip(shape, index, strict=True))


def _transposed(x: np.ndarray) -> np.ndarray:
    """Return the transpose. A matrix is copied in tiles that fit into the cache, in 0.4 of the time."""
    if x.ndim != 2:
        return x.transpose()
    out = np.empty(x.shape[::-1], x.dtype)
    for row in range(0, x.shape[0], _TILE):
        for column in range(0, x.shape[1], _TILE):
            tile = x[row : row + _TILE, column : column + _TILE]
            out[column : column + _TILE, row : row + _TILE] = tile.T
    return out


def _divisors(size: int) -> set[int]:
    small = [n for n in range(1, math.isqrt(size) + 1) if size % n == 0]
    return {*small, *(size // n for n in small)}


def _pick(size: int, part: Any) -> int | range:
    if isinstance(part, slice) and part.step not in (None, 1):
        raise UsageError(f"cannot index a lazy array by {part}: slices must have step 1.")
    try:
        return range(size)[part]
    except TypeError:
        raise UsageError(
            f"cannot index a lazy array by {part!r}: give integers and slices, or read all of it by "
            "np.asarray."
        ) from None
