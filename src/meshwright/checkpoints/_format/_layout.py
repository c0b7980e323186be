"""Layouts: the chunks of each array, and for each chunk the one process that writes it.

A chunk is the shard of one device or, if shards are small, several neighbours on one process, so that a state
of thousands of small arrays stays cheap. A chunk that several processes hold is written by one of them. Each
process computes this choice by itself, and all come to the same result.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshwright.checkpoints._arrays._chunks import grid, row_major
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.errors import UsageError

if TYPE_CHECKING:  # the list of runs reads layouts, and does not wait for JAX
    from jax.sharding import Sharding

Holders = tuple[frozenset[int], ...]

SMALL = 1 << 20  # bytes; merging larger chunks gains nothing

DTYPES = frozenset(
    {"bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"}
    | {"uint64", "float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float4_e2m1fn"}
    | {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz", "float8_e8m0fnu"}
)
"""The names of the data types that can be saved, which are the same in zarr and in NumPy."""


@dataclass(frozen=True)
class ArrayLayout:
    """The chunks of one array, and the processes that write them."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk_shape: tuple[int, ...]
    writers: tuple[int, ...]
    """The process that writes each chunk, in row-major order of the chunk grid."""

    @property
    def chunk_nbytes(self) -> int:
        """Return the size of a chunk in bytes; all have the same."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Yield the position of each chunk in the chunk grid, in row-major order."""
        counts = grid(self.shape, self.chunk_shape)
        # An array with a dimension of size 0 has no chunks, however large its other dimensions are.
        return itertools.product(*map(range, counts)) if all(counts) else iter(())

    def indices(self) -> Iterator[Index]:
        """Yield the index of each chunk into the array, in the same order."""
        for position in self.positions():
            cells = zip(position, self.chunk_shape, strict=True)
            yield tuple(slice(cell * size, (cell + 1) * size) for cell, size in cells)


def layouts(
    leaves: Mapping[str, Any], num_processes: int, local_processes: frozenset[int] = frozenset()
) -> tuple[ArrayLayout, ...]:
    """Return the layouts of named leaves: arrays, numbers, or anything with a shape, a dtype and a sharding.

    Leaves that are not sharded over several processes (numbers, NumPy arrays, arrays on this process's
    devices) are assumed to be equal on all of them, and one process writes each. A chunk that a process of
    `local_processes` has is written by one of these, whatever other processes have it, too.
    """
    _check_dtypes(leaves)
    return _layouts(
        tuple(_described(name, leaf) for name, leaf in leaves.items()), num_processes, local_processes
    )


def balance(chunks: Sequence[tuple[int, frozenset[int]]]) -> list[int]:
    """Return the process that writes each chunk, given its size in bytes and the processes that hold it.

    Chunks are assigned in order of the number of holders, as few holders leave little choice, and then from
    large to small. Each goes to the holder with the fewest bytes to write so far.
    """
    load: dict[int, int] = {}
    writers = [0] * len(chunks)
    # Chunks with few holders come first, as they leave little choice; then the large ones.
    for number in sorted(range(len(chunks)), key=lambda n: (len(chunks[n][1]), -chunks[n][0])):
        nbytes, holders = chunks[number]
        writer = min(holders, key=lambda process: (load.get(process, 0), process))
        load[writer] = load.get(writer, 0) + nbytes
        writers[number] = writer
    return writers


def chunk_number(index: Index, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> int:
    """Return the row-major number of the chunk that begins at the start of `index`."""
    position = [(part.start or 0) // chunk for part, chunk in zip(index, chunk_shape, strict=True)]
    return row_major(position, grid(shape, chunk_shape))


def _check_dtypes(leaves: Mapping[str, Any]) -> None:
    dtypes = {name: _dtype(leaf) for name, leaf in leaves.items()}
    unfit = [f"  {name}: {dtype}" for name, dtype in dtypes.items() if _name(dtype) not in DTYPES]
    if unfit:
        raise UsageError(
            "cannot save leaves that are not arrays of numbers:\n" + "\n".join(unfit) + "\n"
            "Save other values in `extra`, or leave them out of the state."
        )


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


# NumPy computes the name each time.
@functools.cache
def _name(dtype: Any) -> str:
    return dtype.name


@functools.cache
def _native(dtype: np.dtype) -> np.dtype:
    return np.dtype(_name(dtype))


class _Described(NamedTuple):
    """The properties of a leaf that its layout depends on."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any
    piece_shape: tuple[int, ...]
    """The chunk shape if the leaf has no sharding."""


def _described(name: str, leaf: Any) -> _Described:
    shape, sharding = np.shape(leaf), getattr(leaf, "sharding", None)
    piece_shape = leaf.chunk_shape if isinstance(leaf, LazyArray) else shape
    return _Described(name, shape, _native(_dtype(leaf)), sharding, piece_shape)


# A run saves the same tree many times.
@functools.lru_cache(maxsize=4)
def _layouts(
    leaves: tuple[_Described, ...], num_processes: int, local_processes: frozenset[int]
) -> tuple[ArrayLayout, ...]:
    cuts = [_cut(*leaf[1:], num_processes) for leaf in leaves]
    arrays = [
        ArrayLayout(leaf.name, leaf.shape, leaf.dtype, chunk_shape, writers=())
        for leaf, (chunk_shape, _) in zip(leaves, cuts, strict=True)
    ]
    with_holders = [
        (array, [processes & local_processes or processes for processes in holders])
        for array, (_, holders) in zip(arrays, cuts, strict=True)
    ]
    writers = iter(
        balance([(array.chunk_nbytes, processes) for array, holders in with_holders for processes in holders])
    )
    return tuple(
        replace(array, writers=tuple(itertools.islice(writers, len(holders))))
        for array, holders in with_holders
    )


# A large model has thousands of leaves, but few shapes and shardings.
@functools.lru_cache(maxsize=4096)
def _cut(
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: Any,
    piece_shape: tuple[int, ...],
    num_processes: int,
) -> tuple[tuple[int, ...], Holders]:
    """Return the shape of the chunks of an array, and for each chunk the processes that hold it."""
    # A chunk is the shard of one device.
    shard_shape = sharding.shard_shape(shape) if sharding is not None else piece_shape
    # Zarr has no chunks of size 0. For an array without elements, no chunks are written anyway.
    chunk_shape = tuple(max(1, size) for size in shard_shape)
    if sharding is None or sharding.is_fully_addressable:
        holders = (frozenset(range(num_processes)),) * math.prod(grid(shape, chunk_shape))
    else:
        holders = _holders_of_shards(sharding, shape, chunk_shape)
    return _merged(shape, chunk_shape, holders, dtype.itemsize)


def _holders_of_shards(sharding: "Sharding", shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Holders:
    holders: list[set[int]] = [set() for _ in range(math.prod(grid(shape, chunk_shape)))]
    for device, index in sharding.devices_indices_map(shape).items() if holders else ():
        holders[chunk_number(index, shape, chunk_shape)].add(device.process_index)
    return tuple(map(frozenset, holders))


def _merged(
    shape: tuple[int, ...], shard_shape: tuple[int, ...], holders: Holders, itemsize: int
) -> tuple[tuple[int, ...], Holders]:
    """Merge neighbours along the leading dimension that one process holds, up to `SMALL` bytes together."""
    # Joined, 5,000 small arrays over 8 devices are 5,000 entries of a file, and not 40,000.
    num_shards, nbytes = len(holders), math.prod(shard_shape) * itemsize
    if num_shards < 2 or shard_shape[1:] != shape[1:] or num_shards * shard_shape[0] != shape[0]:
        return shard_shape, holders
    for size in (
        count for count in range(min(num_shards, SMALL // nbytes), 1, -1) if num_shards % count == 0
    ):
        groups = [
            frozenset.intersection(*holders[first : first + size]) for first in range(0, num_shards, size)
        ]
        if all(groups):
            return (size * shard_shape[0], *shard_shape[1:]), tuple(groups)
    return shard_shape, holders
