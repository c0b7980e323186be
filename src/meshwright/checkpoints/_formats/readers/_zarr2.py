"""Reads zarr v2 arrays, which have a file for each chunk; a part needs only the chunks that it overlaps.

    .zarray     {"shape": [6, 10], "chunks": [3, 10], "dtype": "<f4", "compressor": {"id": "gzip"}, …}
    0.0, 1.0    chunks, row-major, compressed, each of the full chunk shape, even at the edges

Chunks with gzip, zlib or no compression are read without TensorStore, which need not be installed.

Source: zarr-specs.readthedocs.io/en/latest/v2/v2.0.html. `dtype` may be "bfloat16" and other names of
ml_dtypes, as TensorStore writes them.
"""

import math
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from meshwright.base._internal import Directory, read_each
from meshwright.checkpoints._arrays._chunks import bounds_of, shares_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._formats.readers._tensorstore import tensorstore_for
from meshwright.errors import CheckpointError, DamagedError, UsageError

try:
    from isal.isal_zlib import compressobj, decompressobj
except ImportError:
    # isal has no wheels for some machines.
    from zlib import compressobj, decompressobj

_GZIP, _EITHER = zlib.MAX_WBITS | 16, zlib.MAX_WBITS | 32
_PIECE = 1 << 20  # bytes processed at a time, so that large data is not copied as a whole


def gzipped(data: memoryview, level: int) -> Iterator[bytes]:
    """Yield the pieces of a gzip file with this content."""
    stream = compressobj(level, wbits=_GZIP)
    for start in range(0, len(data), _PIECE):
        yield stream.compress(data[start : start + _PIECE])
    yield stream.flush()


def inflated(data: bytes, nbytes: int) -> np.ndarray:
    """Return the content of gzip or zlib data, which must be of size `nbytes`."""
    stream, buffer, filled = decompressobj(wbits=_EITHER), np.empty(nbytes, np.uint8), 0
    try:
        for piece in _pieces(stream, memoryview(data)):
            if filled + len(piece) > nbytes:
                raise ValueError(f"it holds more than {nbytes} bytes of values")
            buffer[filled : filled + len(piece)] = memoryview(piece)
            filled += len(piece)
    except Exception as error:
        # The errors of isal and zlib have no other common class.
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("it is cut off, or other data follows it")
    if filled < nbytes:
        raise ValueError(f"it holds {filled} bytes of values instead of {nbytes}")
    return buffer


def _pieces(stream: Any, data: memoryview) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        rest: Any = data[start : start + _PIECE]
        while len(piece := stream.decompress(rest, _PIECE)) == _PIECE:
            yield piece
            rest = stream.unconsumed_tail
        yield piece


ZARRAY = ".zarray"

_NUM_THREADS, _IN_FLIGHT_NBYTES = 4, 64 << 20
"""Limits for the chunks of one array that are read at a time: their number, and their total bytes."""

# The ratio of bz2, which compresses zeros the most.
_LARGEST_RATIO = 1 << 21
_KEYS = {
    *("zarr_format", "shape", "chunks", "dtype", "compressor", "filters", "order"),
    # A missing chunk is damage, whatever it would be filled with.
    *("dimension_separator", "fill_value"),
}
_ZLIB, _BY_TENSORSTORE = {"gzip", "zlib"}, {"zstd", "blosc", "bz2"}


@dataclass(frozen=True)
class Zarr2:
    """The content of `.zarray`."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype
    compressor: Mapping[str, Any] | None
    order: Literal["C", "F"] = "C"
    """The order of the values in a chunk: row-major (C) or column-major (F)."""
    separator: str = "."

    @property
    def chunk_nbytes(self) -> int:
        """Return the size of a decompressed chunk in bytes."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the content of a parsed JSON document."""
        if not isinstance(metadata, dict):
            raise TypeError(f"{metadata!r:.40}")
        shape, chunks = tuple(map(int, metadata["shape"])), tuple(map(int, metadata["chunks"]))
        if len(shape) != len(chunks) or min(chunks, default=1) < 1 or min(shape, default=0) < 0:
            raise ValueError(f"shape {shape} in chunks of {chunks}")
        order, separator = metadata.get("order", "C"), metadata.get("dimension_separator", ".")
        if order not in ("C", "F") or separator not in (".", "/"):
            raise ValueError(f"order {order!r}, dimension_separator {separator!r}")
        if metadata.get("zarr_format", 2) != 2:
            raise ValueError(f"zarr_format {metadata['zarr_format']!r}")
        if unknown := [f"{key}={x!r}" for key, x in metadata.items() if x and key not in _KEYS]:
            raise CheckpointError(
                f"its metadata has {', '.join(unknown)}, which version 2 of zarr does not know."
            )
        compressor, filters = metadata.get("compressor"), metadata.get("filters")
        if filters or (compressor and compressor["id"] not in _ZLIB | _BY_TENSORSTORE):
            raise CheckpointError(
                f"its chunks have the filters {filters} and the compressor {compressor}; supported are no "
                f"filters, and {', '.join(sorted(_ZLIB | _BY_TENSORSTORE))} or no compressor."
            )
        return cls(shape, chunks, _dtype(metadata["dtype"]), compressor or None, order, separator)


def _dtype(name: Any) -> np.dtype:
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, SyntaxError):
        # NumPy raises SyntaxError for "1(".
        dtype = None
    if dtype is None or dtype.kind not in "biufcV":
        raise ValueError(f"dtype {name!r}")
    return dtype


def zarr_array(directory: Directory, name: str, metadata: Zarr2) -> LazyArray:
    """Return the array stored in `directory`, which errors call `name`.

    Reading it raises a `DamagedError` if a chunk is missing, cannot be decompressed, or has another size.
    """
    dtype = metadata.dtype.newbyteorder("=")
    return LazyArray(metadata.shape, dtype, _Chunks(directory, name, metadata), stored_chunks=metadata.chunks)


@dataclass(frozen=True)
class _Chunks:
    """The `read` of a zarr v2 array's `LazyArray`."""

    directory: Directory
    name: str
    zarr: Zarr2

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; a chunk that they share is read once."""
        all_bounds = [bounds_of(index, self.zarr.shape) for index in indices]
        dtype = self.zarr.dtype.newbyteorder("=")
        outs = [np.empty([last - first for first, last in bounds], dtype) for bounds in all_bounds]
        shares: dict[tuple[int, ...], list[tuple[np.ndarray, Index]]] = {}
        for bounds, out in zip(all_bounds, outs, strict=True):
            for cell, into, within in shares_of(bounds, self.zarr.chunks):
                shares.setdefault(cell, []).append((out[(*into, ...)], within))

        def take(cell: tuple[int, ...], targets: Sequence[tuple[np.ndarray, Index]]) -> None:
            chunk = self._chunk(cell)
            for out, within in targets:
                out[...] = chunk[within]

        # Starting a thread takes longer than reading a small chunk.
        if len(shares) == 1:
            take(*shares.popitem())
        # Each thread waits for a request and decompresses.
        with ThreadPoolExecutor(self._num_threads) as threads:
            deque(threads.map(take, shares, shares.values()), maxlen=0)
        return outs

    @property
    def _num_threads(self) -> int:
        return max(1, min(_NUM_THREADS, _IN_FLIGHT_NBYTES // self.zarr.chunk_nbytes))

    def _chunk(self, cell: tuple[int, ...]) -> np.ndarray:
        path = self.directory / (self.zarr.separator.join(map(str, cell)) or "0")
        try:
            content = read_each([path])[0]
        except FileNotFoundError:
            raise DamagedError(
                f"{self.name}: the chunk {path} is missing. Copy the whole checkpoint again."
            ) from None
        values = _decoded(content, self.zarr, f"{self.name}: {path}")
        return values.reshape(self.zarr.chunks, order=self.zarr.order)


def _decoded(content: bytes, zarr: Zarr2, name: str) -> np.ndarray:
    """Return the values of a chunk."""
    try:
        if zarr.chunk_nbytes > _LARGEST_RATIO * (len(content) + 1):
            raise ValueError(f"{zarr.chunk_nbytes:,} bytes in {len(content):,} are not possible")
        plain = _decompressed(content, zarr)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise DamagedError(f"{name} cannot be decompressed: {error}. Copy it again.") from None
    if len(plain) != zarr.chunk_nbytes:
        raise DamagedError(
            f"{name} holds {len(plain)} bytes of values instead of {zarr.chunk_nbytes}. Copy it again."
        )
    return np.frombuffer(plain, zarr.dtype)


def _decompressed(content: bytes, zarr: Zarr2) -> bytes | np.ndarray:
    if zarr.compressor is None:
        return content
    if zarr.compressor["id"] in _ZLIB:
        return inflated(content, zarr.chunk_nbytes)
    return _by_tensorstore(content, zarr)


def _by_tensorstore(content: bytes, zarr: Zarr2) -> bytes:
    """Return the decompressed bytes of a chunk, by TensorStore, which has zstd, blosc and others."""
    tensorstore = tensorstore_for(f"a chunk compressed by {zarr.compressor}")
    shape = [math.prod(zarr.chunks) * zarr.dtype.itemsize]
    metadata = {"shape": shape, "chunks": shape, "dtype": "|u1", "compressor": zarr.compressor}
    rest = {"zarr_format": 2, "fill_value": None, "filters": None, "order": "C"}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata | rest}
    context = tensorstore.Context()
    tensorstore.KvStore.open("memory://", context=context).result().write("0", content).result()
    array = tensorstore.open(spec, open=True, assume_metadata=True, context=context).result()
    return array.read().result().tobytes()
