"""Chooses the sharding to read an array with, if processes need it split differently than it is stored.

Suppose an array is stored in chunks of rows, and is needed split along columns. Each process then needs a
little of every chunk, but a chunk is always read as a whole, for its checksum. So each process reads some of
the chunks, and the devices exchange the parts that they need:

    stored    chunks of rows      0 | 1 | 2 | 3
    read      process 0 reads     0 | 1           process 1 reads     2 | 3
    needed    process 0 holds the left half       process 1 holds the right half
"""

import functools
import math
from collections.abc import Iterable

from jax.sharding import NamedSharding, PartitionSpec, Sharding

from meshwright.checkpoints._arrays._chunks import Bounds, bounds_of, overlapping
from meshwright.checkpoints._arrays._lazy import LazyArray

_SMALL = 1 << 20  # bytes; exchanging less takes longer than reading it
_MOST_READ = 1.5  # read at most this many times the elements needed, or else exchange


def read_as(found: LazyArray, wanted: Sharding) -> Sharding:
    """Return the sharding to read an array with: `wanted`, or one along its chunks on the same devices."""
    is_split = isinstance(wanted, NamedSharding) and not wanted.is_fully_addressable
    if not is_split or found.stored_chunks is None or found.nbytes < _SMALL:
        return wanted
    return _read_as(found.shape, found.stored_chunks, wanted)


@functools.lru_cache(maxsize=4096)
def _read_as(shape: tuple[int, ...], chunk_shape: tuple[int, ...], wanted: NamedSharding) -> Sharding:
    along = [
        NamedSharding(wanted.mesh, PartitionSpec(*(None,) * dim, wanted.mesh.axis_names))
        for dim, (size, chunk) in enumerate(zip(shape, chunk_shape, strict=True))
        if chunk < size and size % wanted.mesh.size == 0
    ]
    num_wanted = sum(math.prod(b - a for a, b in part) for parts in _parts(shape, wanted) for part in parts)
    if not along or _num_read(shape, chunk_shape, wanted) < _MOST_READ * num_wanted:
        return wanted
    return min([wanted, *along], key=lambda sharding: _num_read(shape, chunk_shape, sharding))


def _num_read(shape: tuple[int, ...], chunk_shape: tuple[int, ...], sharding: Sharding) -> int:
    """Return the number of elements that all processes read together, in whole chunks."""
    num_chunks = sum(
        len({position for part in parts for position in overlapping(part, chunk_shape)})
        for parts in _parts(shape, sharding)
    )
    return num_chunks * math.prod(chunk_shape)


def _parts(shape: tuple[int, ...], sharding: Sharding) -> Iterable[set[Bounds]]:
    """Return the distinct parts of an array that each process holds."""
    found: dict[int, set[Bounds]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        found.setdefault(device.process_index, set()).add(bounds_of(index or (), shape))
    return found.values()
