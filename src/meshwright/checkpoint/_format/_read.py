"""Reading the native format: a `Source` over one step directory."""

import itertools
import zlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from meshwright.checkpoint._format._layout import Index, grid, row_major
from meshwright.checkpoint._format._manifest import Manifest, Place, SavedArray, read_manifest
from meshwright.checkpoint._lazy import LazyArray
from meshwright.checkpoint._object_bytes import ObjectBytes
from meshwright.checkpoint._object_path import Directory, ObjectPath
from meshwright.errors import DamagedError, UsageError


class NativeSource:
    """One complete checkpoint. Only the chunks that are asked for are touched, each verified once."""

    def __init__(self, path: Directory, *, verify: bool = True):
        """Read the manifest in the step directory `path`; no data file is opened yet.

        `verify` compares each chunk that is read with its checksum.

        Raises:
          CheckpointError: There is no manifest, or it is newer than this reader.
          DamagedError: The manifest is not what was written.
        """
        self._path = path
        self._verify_chunks = verify
        self._manifest = read_manifest(path)
        self._files: dict[int, np.ndarray | ObjectBytes] = {}
        self._verified: set[tuple[str, int]] = set()

    def __str__(self) -> str:
        """Return the path, which is what errors call the checkpoint by."""
        return str(self._path)

    @property
    def manifest(self) -> Manifest:
        """Return all that `manifest.json` says."""
        return self._manifest

    @property
    def step(self) -> int:
        """Return the step that was saved."""
        return self._manifest.step

    @property
    def extra(self) -> Any:
        """Return what was saved beside the arrays."""
        return self._manifest.extra

    @property
    def writer(self) -> Any:
        """Return who saved it: versions, number of processes, mesh."""
        return self._manifest.writer

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        impls = self._manifest.prng_keys
        return {
            name: LazyArray(array.shape, np.dtype(array.dtype), partial(self.read, name), impls.get(name))
            for name, array in self._manifest.arrays.items()
        }

    def read(self, name: str, index: Index) -> np.ndarray:
        """Return the part `index` (slices of step 1) of the array `name`, in memory of its own.

        It is a copy, so that nothing goes on depending on a file that retention may remove.

        Raises:
          DamagedError: A data file is missing, of another size, or its bytes are not those written.
        """
        array = self._manifest.arrays[name]
        bounds = [_bounds(part, size) for part, size in zip(index, array.shape, strict=True)]
        out = np.empty([stop - start for start, stop in bounds], np.dtype(array.dtype))
        for position in _overlapping(bounds, array.chunk_shape):
            into, within = _overlap(bounds, position, array.chunk_shape)
            out[into] = self._chunk(name, array, position)[within]
        return out

    def _chunk(self, name: str, array: SavedArray, position: tuple[int, ...]) -> np.ndarray:
        number = row_major(position, grid(array.shape, array.chunk_shape))
        place = array.chunks[number]
        data = self._file(name, place)[place.offset : place.offset + place.size]
        if self._verify_chunks and (name, number) not in self._verified:
            self._verify(name, place, data)
            self._verified.add((name, number))
        return data.view(np.dtype(array.dtype)).reshape(array.chunk_shape)

    def _file(self, name: str, place: Place) -> np.ndarray | ObjectBytes:
        """Return the bytes of a data file: mapped into memory, or read from an object store when sliced."""
        if place.file not in self._files:
            file = self._manifest.files[place.file]
            path = self._path / file.name
            if isinstance(path, ObjectPath):
                return self._files.setdefault(place.file, ObjectBytes(path, file.nbytes))
            if not path.exists():
                raise self._damaged(name, place, "the file is missing")
            if (found := path.stat().st_size) != file.nbytes:
                raise self._damaged(name, place, f"the file has {found} bytes instead of {file.nbytes}")
            self._files[place.file] = np.asarray(np.memmap(path, np.uint8, "r"))
        return self._files[place.file]

    def _verify(self, name: str, place: Place, data: np.ndarray) -> None:
        if (found := zlib.crc32(data.data)) != place.crc32:
            raise self._damaged(name, place, f"the CRC-32 is {found:08x} instead of {place.crc32:08x}")

    def _damaged(self, name: str, place: Place, how: str) -> DamagedError:
        path = self._path / self._manifest.files[place.file].name
        return DamagedError(
            f"cannot read {name} from {path}, {place.size} bytes at offset {place.offset}: {how}. "
            "Copy the file again, or use another checkpoint."
        )


def _bounds(part: slice, size: int) -> tuple[int, int]:
    start, stop, step = part.indices(size)
    if step != 1:
        raise UsageError(f"cannot read {part}: slices must have step 1.")
    return start, max(start, stop)


def _overlapping(bounds: list[tuple[int, int]], chunk_shape: tuple[int, ...]) -> itertools.product:
    """Return the grid positions of the chunks that lie within the bounds, wholly or in part."""
    dims = zip(bounds, chunk_shape, strict=True)
    return itertools.product(*(range(start // chunk, -(-stop // chunk)) for (start, stop), chunk in dims))


def _overlap(
    bounds: list[tuple[int, int]], position: tuple[int, ...], chunk_shape: tuple[int, ...]
) -> tuple[Index, Index]:
    """Return what a chunk and the bounds share: as an index into the result, and into the chunk."""
    into, within = [], []
    for (start, stop), place, chunk in zip(bounds, position, chunk_shape, strict=True):
        first, last = max(start, place * chunk), min(stop, (place + 1) * chunk)
        into.append(slice(first - start, last - start))
        within.append(slice(first - place * chunk, last - place * chunk))
    return tuple(into), tuple(within)
