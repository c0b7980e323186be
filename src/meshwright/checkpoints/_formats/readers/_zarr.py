"""Reads zarr arrays, versions 2 and 3, with any chunks and codecs, by TensorStore."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.base._internal import Directory
from meshwright.checkpoints._arrays._chunks import Bounds, bounds_of, shares_of
from meshwright.checkpoints._arrays._lazy import Index, LazyArray
from meshwright.checkpoints._formats.readers._tensorstore import reason_of, shared_context, tensorstore_for
from meshwright.errors import DamagedError, MeshwrightError

_IN_FLIGHT_NBYTES = 64 << 20
_OUTSIDE = re.compile(r"(?!NOT_FOUND|FAILED_PRECONDITION|DATA_LOSS|OUT_OF_RANGE)[A-Z_]+: ")
"""Matches the code of an error that is not about the stored bytes; a decoding error has no code."""


def open_arrays(
    directory: Directory, store: Any, specs: Mapping[str, Mapping[str, Any]]
) -> dict[str, LazyArray]:
    """Return the arrays that TensorStore opens by these specs, by name; no chunk is read."""
    tensorstore = tensorstore_for(str(directory))
    opening = {name: _open(tensorstore, store, **spec) for name, spec in specs.items()}
    return {name: _array(f"{name} in {directory}", requested) for name, requested in opening.items()}


def _open(tensorstore: Any, store: Any, path: str, **spec: Any) -> Any:
    options = {"fill_missing_data_reads": False, "recheck_cached_data": "open", "open": True, **spec}
    below = store + (f"{path}/" if path else "")
    return tensorstore.open(options, kvstore=below, context=shared_context(), read=True)


def _array(what: str, requested: Any) -> LazyArray:
    with _telling(what):
        opened = requested.result()
    chunks = opened.chunk_layout.read_chunk.shape
    reader = _Reader(what, opened, tuple(chunks or opened.shape))
    return LazyArray(tuple(opened.shape), opened.dtype.numpy_dtype, reader, stored_chunks=chunks)


@dataclass(frozen=True)
class _Reader:
    """The `read` of a `LazyArray` that TensorStore has opened."""

    what: str
    opened: Any
    chunks: tuple[int, ...]

    def __call__(self, index: Index) -> np.ndarray:
        """Return a part. Chunks are decoded as a whole, up to 64 MiB of them at a time."""
        bounds = bounds_of(index, self.opened.shape)
        shares = list(shares_of(bounds, self.chunks))
        chunk_nbytes = math.prod(self.chunks) * self.opened.dtype.numpy_dtype.itemsize
        at_a_time = max(1, _IN_FLIGHT_NBYTES // max(1, chunk_nbytes))
        if len(shares) <= at_a_time:
            return self.parts([index])[0]
        out = np.empty([last - first for first, last in bounds], self.opened.dtype.numpy_dtype)
        for first in range(0, len(shares), at_a_time):
            self._read_into(out, bounds, [into for _, into, _ in shares[first : first + at_a_time]])
        return out

    def _read_into(self, out: np.ndarray, bounds: Bounds, places: Sequence[Index]) -> None:
        found = self.parts([_within(bounds, place) for place in places])
        for place, part in zip(places, found, strict=True):
            out[place] = part

    def parts(self, indices: Sequence[Index]) -> list[np.ndarray]:
        requested = [self._part(index).read() for index in indices]
        with _telling(self.what):
            return [each.result() for each in requested]

    def _part(self, index: Index) -> Any:
        return self.opened[
            tuple(slice(*part.indices(size)) for size, part in zip(self.opened.shape, index, strict=True))
        ]


def _within(bounds: Bounds, place: Index) -> Index:
    """Return the index into the whole array of an index into a part."""
    return tuple(
        slice(first + at.start, first + at.stop) for (first, _), at in zip(bounds, place, strict=True)
    )


@contextmanager
def _telling(what: str) -> Iterator[None]:
    """Turn an error of TensorStore into one that names the array."""
    try:
        yield
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        how = f"cannot read {what}: {reason_of(error)}"
        if _OUTSIDE.match(str(error)):
            raise MeshwrightError(how) from None
        raise DamagedError(f"{how}. Copy it again, or use another checkpoint.") from None
