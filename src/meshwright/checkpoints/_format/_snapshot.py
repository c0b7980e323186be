"""The shards that this process writes, copied to host memory by the main thread and written by other threads.

On CPU devices the pieces are views and cost nothing: if a buffer with a view is donated, XLA copies it
instead of reusing it (a test checks this). Copies, from accelerators or of NumPy arrays, count against a
budget of bytes; when it is used up, copying waits for writing. Lazy arrays are read when they are written.
"""

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Condition, Lock, RLock
from typing import Any, NamedTuple

import jax
import numpy as np

from meshwright.base._internal import collector_paused
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._format._layout import ArrayLayout, chunk_number
from meshwright.errors import MeshwrightError

Buffer = Any
"""A contiguous object that can be joined, copied and checksummed as bytes."""

HOST_NBYTES = 16 << 30
"""The default limit of copies that a save holds in host memory, in bytes."""


class OwnedChunk(NamedTuple):
    """A chunk that this process writes, as the consecutive pieces of which it consists."""

    pieces: Sequence[jax.Array | np.ndarray | LazyArray]
    copied_nbytes: int
    """The bytes that its copy takes in host memory."""


class Snapshot:
    """The chunks that this process writes, in the order of the layouts."""

    def __init__(
        self,
        leaves: Mapping[str, Any],
        layouts: Sequence[ArrayLayout],
        process_index: int,
        host_nbytes: int = HOST_NBYTES,
    ):
        """Find this process's chunks; nothing is copied before `take`."""
        with collector_paused():
            self._owned = [
                chunk for layout in layouts for chunk in _owned(leaves[layout.name], layout, process_index)
            ]
        self._nbytes = [chunk.copied_nbytes for chunk in self._owned]
        self._taken: list[list[Buffer | LazyArray] | None] = [None] * len(self._owned)
        self._num_started = 0
        self._budget = self._free = host_nbytes
        # A separate lock: Ctrl-C within a condition's own `__enter__` could leave it locked.
        # `_reading` makes two threads that share a lazy chunk read it once.
        self._lock, self._reading = RLock(), Lock()
        self._changed = Condition(self._lock)
        self._abandoned = False

    def take(self, *, wait: bool) -> bool:
        """Copy chunks to the host, and return whether all are: the leaves may then be donated or changed.

        Within the budget, all copies from devices are started before the first is waited for. When the budget
        is used up, this returns False or, with `wait`, waits for chunks to be released. A chunk larger than
        the budget is copied when no other is held.
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
        """Return the pieces of one chunk; wait until they are copied."""
        pieces = self._taken[number] or self._awaited(number)
        return self._read(number) if isinstance(pieces[0], LazyArray) else pieces

    def release(self, number: int) -> None:
        """Free a chunk that has been written."""
        self._taken[number] = None
        with self._lock:
            self._free += self._nbytes[number]
            self._changed.notify_all()

    def abandon(self) -> None:
        """Give up the save: end all waits."""
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
        """Read a lazy chunk once, and keep it until it is released."""
        with self._reading:
            pieces = [
                _bytes(piece) if isinstance(piece, LazyArray) else piece for piece in self._awaited(number)
            ]
            self._taken[number] = pieces
        return pieces

    def _begin(self, number: int) -> bool:
        """Start copying a chunk, if the budget allows it; return whether it does."""
        with self._lock:
            if not self._has_room(number):
                return False
            self._free -= self._nbytes[number]
        if self._nbytes[number]:
            owned = self._owned[number]
            self._owned[number] = owned._replace(pieces=[_start_copy(piece) for piece in owned.pieces])
        return True

    def _finish(self, number: int) -> None:
        """Wait until a chunk is on the host, and make it available to `get`."""
        pieces = [_on_host(piece) for piece in self._owned[number].pieces]
        # Otherwise the arrays and their cached host copies would stay alive.
        self._owned[number] = _NO_CHUNK
        with self._lock:
            self._taken[number] = pieces
            self._changed.notify_all()

    def _has_room(self, number: int) -> bool:
        return self._nbytes[number] <= self._free or self._free == self._budget

    def _await_room(self, number: int) -> None:
        with self._lock:
            self._changed.wait_for(lambda: self._abandoned or self._has_room(number))


_NO_CHUNK = OwnedChunk((), 0)


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
    # On CPU the pieces are views, which count nothing against the budget.
    shards, on_cpu = leaf.addressable_shards, _on_cpu(leaf.sharding)
    for number, members in _members(leaf.sharding, layout.shape, layout.chunk_shape):
        if layout.writers[number] == process_index:
            pieces = [shards[member].data for member in members]
            yield OwnedChunk(pieces, 0 if on_cpu else layout.chunk_nbytes)


@functools.lru_cache(maxsize=4096)
def _members(
    sharding: jax.sharding.Sharding, shape: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> list[tuple[int, list[int]]]:
    """Return the number of each chunk that this process holds, with the numbers of its shards, in order."""
    indices = sharding.addressable_devices_indices_map(shape)
    starts: dict[tuple[int, int], int] = {}
    for member, index in enumerate(indices.values()):
        assert index is not None
        first_row = (index[0].start or 0) if index else 0
        # Replicas of a shard have the same start; the first one is written.
        starts.setdefault((chunk_number(index, shape, chunk_shape), first_row), member)
    chunks: dict[int, list[int]] = {}
    for (number, _), member in sorted(starts.items()):
        chunks.setdefault(number, []).append(member)
    return list(chunks.items())


@functools.lru_cache(maxsize=4096)
def _on_cpu(sharding: jax.sharding.Sharding) -> bool:
    return all(device.platform == "cpu" for device in sharding.device_set)


def _start_copy(piece: Any) -> jax.Array | np.ndarray:
    """Start copying an array from its device; copy a NumPy array now, as the caller may change it."""
    if isinstance(piece, np.ndarray):
        return piece.copy(order="C")
    # An array caches its host copy. A new array object frees it early; the state's own would keep it.
    ours = jax.make_array_from_single_device_arrays(piece.shape, piece.sharding, [piece])
    ours.copy_to_host_async()
    return ours


def _on_host(piece: Any) -> Buffer | LazyArray:
    if isinstance(piece, LazyArray):
        return piece
    try:
        # Of a `jax.Array`, a memoryview takes half the time of `np.asarray`.
        view = memoryview(piece)
    except (BufferError, ValueError):
        # Dtypes of ml_dtypes, and arrays on accelerators, have no buffer protocol.
        return _bytes(piece)
    return view if view.c_contiguous else _bytes(piece)


def _bytes(array: Any) -> np.ndarray:
    return np.asarray(array).reshape(-1).view(np.uint8)
