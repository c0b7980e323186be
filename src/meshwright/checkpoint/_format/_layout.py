"""Who writes what: the chunks of each array, and for each chunk the one process that writes it.

A chunk is the shard that one device holds, or where shards are small, neighbours that one process
holds, which is what keeps a state of thousands of small arrays cheap. A chunk held by several
processes is written by one of them, chosen by a rule that each process works out for itself and all
answer alike.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.arrays import Index, LazyArray, grid, row_major
from meshwright.errors import UsageError

Holders = tuple[frozenset[int], ...]

SMALL = 1 << 20  # bytes; larger chunks gain nothing from being fewer

DTYPES = frozenset(
    {"bool", "int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"}
    | {"uint64", "float16", "float32", "float64", "complex64", "complex128", "bfloat16", "float4_e2m1fn"}
    | {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2"}
    | {"float8_e5m2fnuz", "float8_e8m0fnu"}
)
"""The names of the data types that can be saved: zarr's, and also NumPy's."""


@dataclass(frozen=True)
class ArrayLayout:
    """How one array is cut into chunks and who writes them."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunk_shape: tuple[int, ...]
    writers: tuple[int, ...]
    """The process that writes each chunk, in row-major order of the chunk grid."""

    @property
    def chunk_nbytes(self) -> int:
        """Return the bytes of one chunk; all are of one size."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Yield where each chunk stands in the chunk grid, in row-major order."""
        counts = grid(self.shape, self.chunk_shape)
        # Without elements there are no chunks, and along another dimension there may seem to be any number.
        return itertools.product(*map(range, counts)) if all(counts) else iter(())

    def indices(self) -> Iterator[Index]:
        """Yield which part of the array each chunk is, in the same order."""
        for position in self.positions():
            places = zip(position, self.chunk_shape, strict=True)
            yield tuple(slice(place * size, (place + 1) * size) for place, size in places)


def layouts(leaves: Mapping[str, Any], num_processes: int) -> tuple[ArrayLayout, ...]:
    """Lay out named leaves: arrays, numbers, or anything with a shape, a dtype and a sharding.

    What is not sharded over several processes (numbers, NumPy arrays, arrays on this process's
    devices) is taken to be the same on all of them, and one of them writes it.

    Raises:
      UsageError: A leaf is of a kind that the format has no bytes for. All such are listed.
    """
    _check_dtypes(leaves)
    return _layouts(tuple(_described(name, leaf) for name, leaf in leaves.items()), num_processes)


def balance(chunks: Sequence[tuple[int, frozenset[int]]]) -> list[int]:
    """Return the writer of each chunk, given its bytes and the processes that hold it.

    Chunks with the fewest holders go first, as they leave the least choice, and of those the
    largest; each goes to the holder that has the least to write so far.
    """
    load: dict[int, int] = {}
    writers = [0] * len(chunks)
    for number in sorted(range(len(chunks)), key=lambda n: (len(chunks[n][1]), -chunks[n][0])):
        nbytes, holders = chunks[number]
        writer = min(holders, key=lambda process: (load.get(process, 0), process))
        load[writer] = load.get(writer, 0) + nbytes
        writers[number] = writer
    return writers


def chunk_number(index: Index, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> int:
    """Return the row-major number of the chunk that begins where `index` begins."""
    position = [(part.start or 0) // chunk for part, chunk in zip(index, chunk_shape, strict=True)]
    return row_major(position, grid(shape, chunk_shape))


def _check_dtypes(leaves: Mapping[str, Any]) -> None:
    dtypes = {name: _dtype(leaf) for name, leaf in leaves.items()}
    unfit = [f"  {name}: {dtype}" for name, dtype in dtypes.items() if _name(dtype) not in DTYPES]
    if unfit:
        raise UsageError(
            "cannot save leaves that are not arrays of numbers:\n" + "\n".join(unfit) + "\n"
            "Keep other values in `extra`, or leave them out of the state."
        )


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


@functools.cache  # NumPy puts the name together each time
def _name(dtype: Any) -> str:
    return dtype.name


@functools.cache
def _native(dtype: np.dtype) -> np.dtype:
    return np.dtype(_name(dtype))


class _Described(NamedTuple):
    """All that the layout of a leaf depends on."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Any
    piece_shape: tuple[int, ...]
    """What is written in one piece where nothing is sharded."""


def _described(name: str, leaf: Any) -> _Described:
    shape, sharding = np.shape(leaf), getattr(leaf, "sharding", None)
    piece_shape = leaf.chunk_shape if isinstance(leaf, LazyArray) else shape
    return _Described(name, shape, _native(_dtype(leaf)), sharding, piece_shape)


@functools.lru_cache(maxsize=4)  # a run saves the same tree again and again
def _layouts(leaves: tuple[_Described, ...], num_processes: int) -> tuple[ArrayLayout, ...]:
    cuts = [_cut(*leaf[1:], num_processes) for leaf in leaves]
    arrays = [
        ArrayLayout(leaf.name, leaf.shape, leaf.dtype, chunk_shape, writers=())
        for leaf, (chunk_shape, _) in zip(leaves, cuts, strict=True)
    ]
    held = [(array, holders) for array, (_, holders) in zip(arrays, cuts, strict=True)]
    writers = iter(balance([(array.chunk_nbytes, each) for array, holders in held for each in holders]))
    return tuple(
        replace(array, writers=tuple(itertools.islice(writers, len(holders)))) for array, holders in held
    )


@functools.lru_cache(maxsize=4096)  # a large model has thousands of leaves, but few shapes and shardings
def _cut(
    shape: tuple[int, ...],
    dtype: np.dtype,
    sharding: Any,
    piece_shape: tuple[int, ...],
    num_processes: int,
) -> tuple[tuple[int, ...], Holders]:
    """Return the shape of the chunks of an array, and for each chunk the processes that hold it."""
    shard_shape = sharding.shard_shape(shape) if sharding is not None else piece_shape
    # Zarr has no chunks of size 0, and of an array without elements none are written.
    chunk_shape = tuple(max(1, size) for size in shard_shape)
    if sharding is None or sharding.is_fully_addressable:
        holders = (frozenset(range(num_processes)),) * math.prod(grid(shape, chunk_shape))
    else:
        holders = _holders_of_shards(sharding, shape, chunk_shape)
    return _merged(shape, chunk_shape, holders, dtype.itemsize)


def _holders_of_shards(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> Holders:
    holders: list[set[int]] = [set() for _ in range(math.prod(grid(shape, chunk_shape)))]
    for device, index in sharding.devices_indices_map(shape).items() if holders else ():
        holders[chunk_number(index, shape, chunk_shape)].add(device.process_index)
    return tuple(map(frozenset, holders))


def _merged(
    shape: tuple[int, ...], shard_shape: tuple[int, ...], holders: Holders, itemsize: int
) -> tuple[tuple[int, ...], Holders]:
    """Join as many neighbours along the leading axis as one process holds and as are small together."""
    num_shards, nbytes = len(holders), math.prod(shard_shape) * itemsize
    if num_shards < 2 or shard_shape[1:] != shape[1:] or num_shards * shard_shape[0] != shape[0]:
        return shard_shape, holders
    for size in range(min(num_shards, SMALL // nbytes), 1, -1):
        groups = [frozenset.intersection(*holders[at : at + size]) for at in range(0, num_shards, size)]
        if num_shards % size == 0 and all(groups):
            return (size * shard_shape[0], *shard_shape[1:]), tuple(groups)
    return shard_shape, holders
