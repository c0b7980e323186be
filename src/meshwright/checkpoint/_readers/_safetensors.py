"""safetensors -> named arrays: one file, or several with an index, as `save_pretrained` leaves them."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from meshwright.checkpoint import _safetensors
from meshwright.checkpoint._lazy import Index, LazyArray
from meshwright.errors import CheckpointError, DamagedError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsSource:
    """The arrays of a file, or of a directory's files. Headers are read at once, arrays when asked for."""

    def __init__(self, path: str | Path):
        """Open a file, or a directory with an index, with `model.safetensors` or with any such files.

        Raises:
          CheckpointError: There is nothing of the kind, or two files have an array of one name.
          DamagedError: A file is missing, cut short, or has no header that makes sense.
        """
        self._path = Path(path).expanduser()
        self._arrays: dict[str, LazyArray] = {}
        headers = {file: _safetensors.read_header(file) for file in _files(self._path)}
        counts = Counter(name for header in headers.values() for name in header)
        if doubles := sorted(name for name, count in counts.items() if count > 1):
            raise CheckpointError(
                f"{self._path} has {', '.join(doubles[:5])} in several files, and no {INDEX} that says which "
                "to take. Give one file, or move the others away."
            )
        for file, header in headers.items():
            self._arrays |= {name: _lazy(file, entry) for name, entry in header.items()}

    def __str__(self) -> str:
        """Return the path, which is what errors call it by."""
        return str(self._path)

    def arrays(self) -> Mapping[str, LazyArray]:
        """Return every array by name; nothing is read."""
        return self._arrays

    def read(self, name: str, index: Index, /) -> np.ndarray:
        """Return a part of one array."""
        return self._arrays[name].read(index)


def _files(path: Path) -> list[Path]:
    """Return the files that hold the arrays of `path`."""
    if path.is_file():
        return [path]
    if (path / INDEX).is_file():
        return [path / name for name in _listed(path / INDEX)]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    if files := sorted(path.glob("*.safetensors")):
        return files
    raise CheckpointError(f"{path} is no safetensors file, nor a directory with any.")


def _listed(index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{index} does not say which file holds what: {error!r}.") from None


def _lazy(file: Path, entry: _safetensors.Entry) -> LazyArray:
    """Return an array of a file, of which only the pages that are asked for are read."""

    def read(index: Index) -> np.ndarray:
        count = math.prod(entry.shape)
        if not count:  # which cannot be mapped
            return np.empty(entry.shape, entry.dtype)[index]
        mapped = np.memmap(file, entry.dtype, "r", entry.offset, (count,))
        return np.array(mapped.reshape(entry.shape)[index])

    return LazyArray(entry.shape, entry.dtype, read)
