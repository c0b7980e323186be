"""Arrays whose shape and dtype are known and whose values are read when they are asked for."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from meshwright.arrays._cast import converted
from meshwright.errors import UsageError

Index = tuple[slice, ...]
"""As many slices, of step 1, as an array has dimensions."""

_TILE = 128
_PIECE_NBYTES = range(1 << 20, (64 << 20) + 1)


@dataclass(frozen=True, eq=False)
class LazyArray:
    """An array that nothing has been read of. `np.asarray` reads all of it, `read` a part.

    It is read anew each time, from where it lies: if that is a checkpoint, it must still be there.
    Make one of your own for whatever can be computed from parts: for twice `x`,
    `LazyArray(x.shape, x.dtype, lambda index: 2 * x.read(index))`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray] = field(repr=False)
    """Returns a part, in memory of its own; `restore` calls it on several threads.

    It may have a method `parts`, which takes a list of indices and reads what they share once.
    """
    key_impl: str | None = None
    """Of the data of typed PRNG keys, whose last dimension is one key's: the keys' implementation."""
    stored_chunks: tuple[int, ...] | None = None
    """The shape of the equal chunks in which it lies, if it does: some of one costs as much as all of it."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes that all of it takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Return the shape of the equal pieces, of 1 to 64 MiB, in which it is saved.

        They are those in which it lies, if they are of such a size, or else it is cut along one dimension.
        What is smaller, or cannot be cut into such, is one piece.
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
        """Return several parts, as `read` does."""
        parts = getattr(self.read, "parts", None)
        return parts(indices) if parts and indices else [self.read(index) for index in indices]

    def astype(self, dtype: DTypeLike) -> Self:
        """Return the array in another dtype, lazily. When it is read, all numbers must fit."""
        wanted = np.dtype(dtype)
        return self.with_values(lambda part: converted("an array", part, wanted), wanted)

    def view(self, dtype: DTypeLike) -> Self:
        """Return the array with its bits taken for another dtype of the same size, lazily."""
        wanted = np.dtype(dtype)
        return self.with_values(lambda part: part.view(wanted), wanted)

    def with_values(self, change: Callable[[np.ndarray], np.ndarray], dtype: np.dtype) -> Self:
        """Return the array with `change` made to each part that is read, which keeps the shape, lazily."""
        reader = _Derived(self, lambda index: index, lambda part, _: change(part))
        return dataclasses.replace(self, dtype=dtype, read=reader)

    def transpose(self) -> Self:
        """Return the array with its dimensions in the opposite order, lazily."""
        reader = _Derived(self, lambda index: index[::-1], lambda part, _: _turned(part))
        return dataclasses.replace(self, shape=self.shape[::-1], read=reader, stored_chunks=None)

    def reshape(self, *shape: int) -> Self:
        """Return the array in another shape, lazily. Whole rows are read, as many as it takes.

        Raises:
          UsageError: It has another number of elements.
        """
        if math.prod(shape) != math.prod(self.shape):
            raise UsageError(f"an array of shape {self.shape} cannot have the shape {shape}.")
        if not self.shape or not shape or not math.prod(shape):
            return dataclasses.replace(
                self, shape=shape, read=lambda i: np.asarray(self).reshape(shape)[i], stored_chunks=None
            )
        width, wanted = math.prod(self.shape[1:]), math.prod(shape[1:])

        def bounds(index: Index) -> tuple[int, int]:
            rows = range(shape[0])[index[0]]
            return rows.start * wanted, max(rows.start, rows.stop) * wanted

        def held(index: Index) -> Index:
            start, stop = bounds(index)
            return slice(start // width, -(-stop // width)), *(slice(None),) * (self.ndim - 1)

        def cut(rows: np.ndarray, index: Index) -> np.ndarray:
            start, stop = bounds(index)
            part = rows.reshape(-1)[start % width :][: stop - start].reshape(-1, *shape[1:])
            return part[:, *index[1:]]

        return dataclasses.replace(self, shape=shape, read=_Derived(self, held, cut), stored_chunks=None)

    def __getitem__(self, index: Any) -> Self:
        """Return a part, lazily. `index` holds integers and slices of step 1.

        Raises:
          UsageError: It holds something else.
          IndexError: An integer lies outside.
        """
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
        """Read all of it."""
        return self.read((slice(None),) * self.ndim).astype(dtype or self.dtype, copy=False)

    def _full(self, index: Any) -> tuple[Any, ...]:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) > self.ndim:
            raise UsageError(f"{len(index)} indices are too many for an array of shape {self.shape}.")
        return index + (slice(None),) * (self.ndim - len(index))


@dataclass(frozen=True)
class _Derived:
    """What a `LazyArray` reads with that is made of another one, and shares what its parts share there."""

    of: LazyArray
    within: Callable[[Index], Index]
    """Returns which part of `of` one is made of."""
    make: Callable[[np.ndarray, Index], np.ndarray]
    """Makes it."""

    def __call__(self, index: Index) -> np.ndarray:
        return self.make(self.of.read(self.within(index)), index)

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts."""
        read = self.of.read_parts([self.within(index) for index in indices])
        return [self.make(part, index) for part, index in zip(read, indices, strict=True)]


@dataclass(frozen=True)
class _Parts:
    """What a `LazyArray` reads with that is made of several."""

    parts: Callable[[Sequence[Index]], list[np.ndarray]]

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]


def in_memory(array: Any) -> LazyArray:
    """Return an array that is there already, or a number, like one that is not."""
    array = array if hasattr(array, "dtype") else np.asarray(array)
    return LazyArray(array.shape, array.dtype, lambda index: np.array(array[index]))


def stack(arrays: Sequence[LazyArray]) -> LazyArray:
    """Return arrays of one shape and dtype stacked along a new first dimension, lazily.

    Raises:
      UsageError: There are none, or they differ in shape or dtype.
    """
    kinds = {(array.shape, array.dtype.name, array.key_impl) for array in arrays}
    if len(kinds) != 1:
        raise UsageError(f"cannot stack arrays of {len(kinds)} kinds: {sorted(map(str, kinds))}.")
    shape, dtype = (len(arrays), *arrays[0].shape), arrays[0].dtype

    def parts(indices: Sequence[Index]) -> list[np.ndarray]:
        found = [np.empty(shape_of(index, shape), dtype) for index in indices]
        places = [range(len(arrays))[index[0]] for index in indices]
        for number, array in enumerate(arrays):
            wanting = [each for each, among in enumerate(places) if number in among]
            for each, part in zip(
                wanting, array.read_parts([indices[each][1:] for each in wanting]), strict=True
            ):
                found[each][places[each].index(number)] = part
        return found

    return dataclasses.replace(arrays[0], shape=shape, read=_Parts(parts), stored_chunks=None)


def concatenate(arrays: Sequence[LazyArray]) -> LazyArray:
    """Return arrays of one dtype joined along their last dimension, lazily.

    Raises:
      UsageError: There are none, or they differ in dtype or in another dimension.
    """
    kinds = {(array.shape[:-1], array.dtype.name, array.ndim, array.key_impl) for array in arrays}
    if len(kinds) != 1:
        raise UsageError(f"cannot join arrays of {len(kinds)} kinds: {sorted(map(str, kinds))}.")
    ends = list(itertools.accumulate(array.shape[-1] for array in arrays))
    shape = (*arrays[0].shape[:-1], ends[-1])

    def within(index: Index, end: int, array: LazyArray) -> Index:
        wanted, begin = range(ends[-1])[index[-1]], end - array.shape[-1]
        return (*index[:-1], slice(max(wanted.start, begin) - begin, max(0, min(wanted.stop, end) - begin)))

    def parts(indices: Sequence[Index]) -> list[np.ndarray]:
        found: list[list[np.ndarray]] = [[] for _ in indices]
        for end, array in zip(ends, arrays, strict=True):
            wanted = {each: within(index, end, array) for each, index in enumerate(indices)}
            wanted = {each: index for each, index in wanted.items() if index[-1].start < index[-1].stop}
            for each, part in zip(wanted, array.read_parts(list(wanted.values())), strict=True):
                found[each].append(part)
        return [
            np.concatenate(each, axis=-1) if each else np.empty(shape_of(index, shape), arrays[0].dtype)
            for each, index in zip(found, indices, strict=True)
        ]

    return dataclasses.replace(arrays[0], shape=shape, read=_Parts(parts), stored_chunks=None)


def shape_of(index: Index, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the part `index` of an array of the given shape."""
    return tuple(len(range(size)[part]) for size, part in zip(shape, index, strict=True))


def _turned(x: np.ndarray) -> np.ndarray:
    """Return the transpose; of a matrix tile by tile, which takes 0.4 of the time: caches hold a tile."""
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
        raise UsageError(f"cannot take {part} lazily: slices must have step 1.")
    try:
        return range(size)[part]
    except TypeError:
        raise UsageError(
            f"cannot take {part!r} lazily: give integers and slices, or read all of it."
        ) from None
