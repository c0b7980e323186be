"""A zarr v2 array, a file for each chunk, read in parts: only the chunks that have some of what is wanted.

    .zarray     {"shape": [6, 10], "chunks": [3, 10], "dtype": "<f4", "compressor": {"id": "gzip"}, …}
    0.0, 1.0    chunks, row-major, compressed, each of the full shape of a chunk, at the edges too

gzip, zlib and what is not compressed are read without TensorStore, which not all have installed.

Source: zarr-specs.readthedocs.io/en/latest/v2/v2.0.html. `dtype` may be "bfloat16" and other names of
ml_dtypes, as TensorStore writes them.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from meshwright.arrays import Index, LazyArray, bounds_of, shares_of
from meshwright.errors import CheckpointError, DamagedError, UsageError
from meshwright.formats._deflate import inflated
from meshwright.formats.readers._tensorstore import tensorstore_for
from meshwright.storage import Directory

ZARRAY = ".zarray"

_NUM_THREADS, _IN_FLIGHT_NBYTES = 4, 64 << 20
"""How many chunks of one array are read at a time, and their size together; each is in memory twice."""

_ZLIB, _BY_TENSORSTORE = {"gzip", "zlib"}, {"zstd", "blosc", "bz2"}


@dataclass(frozen=True)
class Zarr2:
    """What `.zarray` says."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype
    compressor: Mapping[str, Any] | None
    order: Literal["C", "F"] = "C"
    """Of the values in a chunk: row-major, or column-major."""
    separator: str = "."

    @property
    def chunk_nbytes(self) -> int:
        """Return the bytes of a chunk that is not compressed."""
        return math.prod(self.chunks) * self.dtype.itemsize

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> Self:
        """Return what the JSON says, or as much of it as there is.

        Raises:
          CheckpointError: it has what this reader does not read.
          KeyError, TypeError, ValueError: it is no such thing.
        """
        if not isinstance(metadata, dict):
            raise TypeError(f"{metadata!r:.40}")
        shape, chunks = tuple(map(int, metadata["shape"])), tuple(map(int, metadata["chunks"]))
        if len(shape) != len(chunks) or min(chunks, default=1) < 1 or min(shape, default=0) < 0:
            raise ValueError(f"shape {shape} in chunks of {chunks}")
        order, separator = metadata.get("order", "C"), metadata.get("dimension_separator", ".")
        if order not in ("C", "F") or separator not in (".", "/"):
            raise ValueError(f"order {order!r}, dimension_separator {separator!r}")
        compressor, filters = metadata.get("compressor"), metadata.get("filters")
        if filters or (compressor and compressor["id"] not in _ZLIB | _BY_TENSORSTORE):
            raise CheckpointError(
                f"its chunks have the filters {filters} and the compressor {compressor}; read are those "
                f"without filters, compressed by {', '.join(sorted(_ZLIB | _BY_TENSORSTORE))} or nothing."
            )
        return cls(shape, chunks, _dtype(metadata["dtype"]), compressor or None, order, separator)


def _dtype(name: Any) -> np.dtype:
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except (TypeError, SyntaxError):  # NumPy's, of "1(", say
        dtype = None
    if dtype is None or dtype.kind not in "biufcV":
        raise ValueError(f"dtype {name!r}")
    return dtype


def zarr_array(directory: Directory, name: str, metadata: Zarr2) -> LazyArray:
    """Return the array that lies in `directory`; errors will call it `name`.

    Raises:
      DamagedError (when it is read): a chunk is missing, cannot be decompressed, or is of another size.
    """
    dtype = metadata.dtype.newbyteorder("=")
    return LazyArray(metadata.shape, dtype, _Chunks(directory, name, metadata), stored_chunks=metadata.chunks)


@dataclass(frozen=True)
class _Chunks:
    """What a `LazyArray` of chunks reads with."""

    directory: Directory
    name: str
    zarr: Zarr2

    def __call__(self, index: Index) -> np.ndarray:
        return self.parts([index])[0]

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        """Return several parts; a chunk that has some of many is read once."""
        wanted = [bounds_of(index, self.zarr.shape) for index in indices]
        dtype = self.zarr.dtype.newbyteorder("=")
        outs = [np.empty([last - first for first, last in bounds], dtype) for bounds in wanted]
        shares: dict[tuple[int, ...], list[tuple[np.ndarray, Index]]] = {}
        for bounds, out in zip(wanted, outs, strict=True):
            for place, into, within in shares_of(bounds, self.zarr.chunks):
                shares.setdefault(place, []).append((out[(*into, ...)], within))

        def take(place: tuple[int, ...], targets: Sequence[tuple[np.ndarray, Index]]) -> None:
            chunk = self._chunk(place)
            for out, within in targets:
                out[...] = chunk[within]

        if len(shares) == 1:  # to start a thread takes longer than to read a small chunk
            take(*shares.popitem())
        with ThreadPoolExecutor(self._num_threads) as threads:  # each is a request, and to be decompressed
            deque(threads.map(take, shares, shares.values()), maxlen=0)
        return outs

    @property
    def _num_threads(self) -> int:
        return max(1, min(_NUM_THREADS, _IN_FLIGHT_NBYTES // self.zarr.chunk_nbytes))

    def _chunk(self, place: tuple[int, ...]) -> np.ndarray:
        path = self.directory / (self.zarr.separator.join(map(str, place)) or "0")
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise DamagedError(
                f"{self.name}: the chunk {path} is missing. Copy the whole checkpoint again."
            ) from None
        values = _decoded(content, self.zarr, f"{self.name}: {path}")
        return values.reshape(self.zarr.chunks, order=self.zarr.order)


def _decoded(content: bytes, zarr: Zarr2, what: str) -> np.ndarray:
    """Return the values of a chunk.

    Raises:
      DamagedError: it cannot be decompressed, or is of another size.
    """
    try:
        plain = _decompressed(content, zarr)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise DamagedError(f"{what} cannot be decompressed: {error}. Copy it again.") from None
    if len(plain) != zarr.chunk_nbytes:
        raise DamagedError(
            f"{what} holds {len(plain)} bytes of values instead of {zarr.chunk_nbytes}. Copy it again."
        )
    return np.frombuffer(plain, zarr.dtype)


def _decompressed(content: bytes, zarr: Zarr2) -> bytes | np.ndarray:
    if zarr.compressor is None:
        return content
    if zarr.compressor["id"] in _ZLIB:
        return inflated(content, zarr.chunk_nbytes)
    return _by_tensorstore(content, zarr)


def _by_tensorstore(content: bytes, zarr: Zarr2) -> bytes:
    """Return what TensorStore, which knows zstd, blosc and others, makes of a chunk, as an array of bytes.

    Raises:
      ValueError: it is damaged.
      UsageError: TensorStore is not installed.
    """
    tensorstore = tensorstore_for(f"a chunk compressed by {zarr.compressor}")
    shape = [math.prod(zarr.chunks) * zarr.dtype.itemsize]
    metadata = {"shape": shape, "chunks": shape, "dtype": "|u1", "compressor": zarr.compressor}
    rest = {"zarr_format": 2, "fill_value": None, "filters": None, "order": "C"}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata | rest}
    context = tensorstore.Context()
    tensorstore.KvStore.open("memory://", context=context).result().write("0", content).result()
    array = tensorstore.open(spec, open=True, assume_metadata=True, context=context).result()
    return array.read().result().tobytes()
