"""The shards that this process writes, on the host: the main thread takes them, other threads write.

On CPU the pieces are views and cost nothing: XLA copies a buffer that is viewed instead of reusing it
when it is donated (checked by a test). What is copied, from accelerators or out of NumPy arrays,
counts against a budget of bytes; where it is used up, taking waits for writing. Lazy arrays are read
when they are written.
"""

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Condition, Lock, RLock
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.arrays import LazyArray
from meshwright.checkpoint._format._layout import ArrayLayout, chunk_number
from meshwright.collector import collector_paused
from meshwright.errors import MeshwrightError

Buffer = Any
"""A contiguous object that can be joined, copied and checksummed as bytes."""

HOST_NBYTES = 16 << 30
"""How many bytes of copies a save may hold on the host, unless told otherwise."""


class OwnedChunk(NamedTuple):
    """One chunk that this process writes, as the pieces that it is cut into, one after the other."""

    pieces: Sequence[jax.Array | np.ndarray | LazyArray]
    copied_nbytes: int
    """What it takes on the host, from when it is taken."""


class Snapshot:
    """The chunks that this process writes, in the order of the layouts."""

    def __init__(
        self,
        leaves: Mapping[str, Any],
        layouts: Sequence[ArrayLayout],
        process_index: int,
        host_nbytes: int = HOST_NBYTES,
    ):
        """Find the chunks; nothing is copied before `take`."""
        with collector_paused():
            self._owned = [
                chunk for layout in layouts for chunk in _owned(leaves[layout.name], layout, process_index)
            ]
        self._nbytes = [chunk.copied_nbytes for chunk in self._owned]
        self._taken: list[list[Buffer | LazyArray] | None] = [None] * len(self._owned)
        self._num_started = 0
        self._budget = self._free = host_nbytes
        # Taken by itself, as Ctrl-C may come within a condition's own `__enter__`, and keep it locked.
        self._lock, self._reading = RLock(), Lock()
        self._changed = Condition(self._lock)
        self._abandoned = False

    def take(self, *, wait: bool) -> bool:
        """Put chunks on the host, and return True when it was all: the leaves may then be donated or changed.

        All copies from devices are under way before the first is awaited, as far as the budget
        reaches. At its end, returns False, or waits for chunks to be released. A chunk that is larger
        than the budget waits until no other is there, and passes.
        """
        if wait:
            return self._take(wait=True)
        with collector_paused():
            return self._take(wait=False)

    def _take(self, *, wait: bool) -> bool:
        under_way: deque[int] = deque()
        while self._num_started < len(self._owned) and not self._abandoned:
            if self._begin(self._num_started):
                under_way.append(self._num_started)
                self._num_started += 1
            elif under_way:
                self._finish(under_way.popleft())
            elif wait:
                self._await_room(self._num_started)
            else:
                return False
        for number in under_way:
            self._finish(number)
        return True

    def get(self, number: int) -> list[Buffer]:
        """Return the pieces of one chunk, when they are there."""
        pieces = self._taken[number] or self._awaited(number)
        return self._read(number) if isinstance(pieces[0], LazyArray) else pieces

    def release(self, number: int) -> None:
        """Let go of a chunk that has been written."""
        self._taken[number] = None
        with self._lock:
            self._free += self._nbytes[number]
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let go of everything, and let nobody wait."""
        with self._lock:
            self._abandoned = True
            self._changed.notify_all()

    def _awaited(self, number: int) -> list[Buffer | LazyArray]:
        with self._lock:
            self._changed.wait_for(lambda: self._abandoned or self._taken[number] is not None)
            if (pieces := self._taken[number]) is None:
                raise MeshwrightError("the save was given up.")
            return pieces

    def _read(self, number: int) -> list[Buffer]:
        """Read a lazy chunk, once for all who get it before it is released."""
        with self._reading:
            pieces = [
                _bytes(piece) if isinstance(piece, LazyArray) else piece for piece in self._awaited(number)
            ]
            self._taken[number] = pieces
        return pieces

    def _begin(self, number: int) -> bool:
        """Start copying a chunk, if there is room for it."""
        with self._lock:
            if not self._has_room(number):
                return False
            self._free -= self._nbytes[number]
        if self._nbytes[number]:
            owned = self._owned[number]
            self._owned[number] = owned._replace(pieces=[_start_copy(piece) for piece in owned.pieces])
        return True

    def _finish(self, number: int) -> None:
        """Hand over a chunk, once it is on the host."""
        pieces = [_on_host(piece) for piece in self._owned[number].pieces]
        self._owned[number] = _GONE  # or the arrays would be held, and with them what they keep on the host
        with self._lock:
            self._taken[number] = pieces
            self._changed.notify_all()

    def _has_room(self, number: int) -> bool:
        return self._nbytes[number] <= self._free or self._free == self._budget

    def _await_room(self, number: int) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._abandoned or self._has_room(number))


_GONE = OwnedChunk((), 0)


def _owned(leaf: Any, layout: ArrayLayout, process_index: int) -> Iterator[OwnedChunk]:
    """Yield the chunks of `leaf` that this process writes."""
    if process_index not in layout.writers:
        return
    if isinstance(leaf, LazyArray):
        for writer, index in zip(layout.writers, layout.indices(), strict=True):
            if writer == process_index:
                yield OwnedChunk((leaf[index].astype(layout.dtype),), 0)
        return
    if not isinstance(leaf, jax.Array):
        yield OwnedChunk((np.asarray(leaf, layout.dtype),), layout.chunk_nbytes)
        return
    shards, on_cpu = leaf.addressable_shards, _on_cpu(leaf.sharding)
    for number, members in _members(leaf.sharding, layout.shape, layout.chunk_shape):
        if layout.writers[number] == process_index:
            pieces = [shards[member].data for member in members]
            yield OwnedChunk(pieces, 0 if on_cpu else layout.chunk_nbytes)


@functools.lru_cache(maxsize=4096)
def _members(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> list[tuple[int, list[int]]]:
    """Return for each chunk that this process holds which of its shards are in it, in order."""
    indices = sharding.addressable_devices_indices_map(shape)
    starts: dict[tuple[int, int], int] = {}
    for member, index in enumerate(indices.values()):
        assert index is not None
        first_row = (index[0].start or 0) if index else 0
        starts.setdefault((chunk_number(index, shape, chunk_shape), first_row), member)
    chunks: dict[int, list[int]] = {}
    for (number, _), member in sorted(starts.items()):
        chunks.setdefault(number, []).append(member)
    return list(chunks.items())


@functools.lru_cache(maxsize=4096)
def _on_cpu(sharding: jax.sharding.Sharding) -> bool:
    return all(device.platform == "cpu" for device in sharding.device_set)


def _start_copy(piece: Any) -> jax.Array | np.ndarray:
    """Start the copy of what is on a device, and copy what is on the host, as the caller may change his."""
    if isinstance(piece, np.ndarray):
        return piece.copy(order="C")
    # An array keeps the copy that is made of it. This one is ours: the state's own would keep it longer.
    ours = jax.make_array_from_single_device_arrays(piece.shape, piece.sharding, [piece])
    ours.copy_to_host_async()
    return ours


def _on_host(piece: Any) -> Buffer | LazyArray:
    if isinstance(piece, LazyArray):
        return piece
    try:
        view = memoryview(piece)  # of a jax.Array in half the time that NumPy takes
    except (BufferError, ValueError):  # of dtypes from ml_dtypes, and of accelerators
        return _bytes(piece)
    return view if view.c_contiguous else _bytes(piece)


def _bytes(array: Any) -> np.ndarray:
    return np.asarray(array).reshape(-1).view(np.uint8)
