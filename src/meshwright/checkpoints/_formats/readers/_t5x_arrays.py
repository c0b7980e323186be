"""Opens the arrays stored beside T5X's tree, each in its own directory, by their specs in the tree.

    {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": "target.w/"},
     "metadata": {"chunks": [3, 8], "compressor": {"id": "gzip", "level": 1}, "shape": [12, 8]}}

The specs are TensorStore's. The first trees that Orbax wrote have a text instead, PLACEHOLDER://target.w.
"""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from meshwright.base._internal import Directory, parse_json, read_each
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._formats.readers._zarr2 import ZARRAY, Zarr2, zarr_array
from meshwright.errors import CheckpointError, DamagedError

_SPEC = {"driver", "kvstore", "metadata"}
_PLACEHOLDER = "PLACEHOLDER://"


def is_spec(leaf: Any) -> bool:
    """Return whether a leaf is TensorStore's spec of an array, and not parameters with the same names."""
    has_keys = isinstance(leaf, dict) and leaf.keys() >= _SPEC
    return has_keys and isinstance(leaf["driver"], str) and isinstance(leaf["metadata"], dict)


def is_elsewhere(leaf: Any) -> bool:
    return is_spec(leaf) or (isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER))


def array_beside(directory: Directory, name: str, leaf: Any, version: int | None, like: Any) -> LazyArray:
    """Return an array that is stored in its own directory."""
    folder = directory / _folder(leaf)
    zarr = _zarray(folder / ZARRAY) or _of_spec(leaf) or _alike(like)
    if isinstance(leaf, dict):
        _check_agreement(zarr, leaf, version)
    array = zarr_array(folder, name, zarr)
    if array.dtype != np.uint16:
        return array
    if version == 2:  # it stores bfloat16 as uint16
        return array.view("bfloat16")
    raise CheckpointError("its dtype is uint16, which T5X does not write: it may be copied bits of bfloat16.")


def _check_agreement(zarr: Zarr2, spec: Mapping[str, Any], version: int | None) -> None:
    """Compare an array's `.zarray` with its spec in the tree."""
    shape, dtype = spec["metadata"].get("shape"), spec["metadata"].get("dtype", spec.get("dtype"))
    if shape not in (None, list(zarr.shape)):
        raise DamagedError(f"it has shape {list(zarr.shape)} in its .zarray, but {shape} in the tree.")
    if dtype is None or (version == 2 and zarr.dtype == np.uint16 and dtype == "bfloat16"):
        return
    if zarr.dtype != _dtype_of(dtype):
        raise DamagedError(f"it has dtype {zarr.dtype} in its .zarray, but {dtype} in the tree.")


def _dtype_of(said: Any) -> np.dtype | None:
    """Return the dtype of a spec; None if it is invalid. A name without a byte order means little-endian."""
    try:
        dtype = np.dtype(said)
    except (TypeError, ValueError, SyntaxError):  # NumPy raises SyntaxError for "1("
        return None
    return dtype if str(said).startswith((">", "<")) else dtype.newbyteorder("<")


def _folder(leaf: Any) -> str:
    """Return the name of an array's directory, without the path that it had when it was written."""
    if isinstance(leaf, str):
        return PurePosixPath(leaf.removeprefix(_PLACEHOLDER)).name
    if leaf["driver"] != "zarr":
        raise CheckpointError(f"TensorStore's driver {leaf['driver']} is not supported, only zarr is.")
    kvstore = leaf["kvstore"]
    path = kvstore.get("path") if isinstance(kvstore, dict) else kvstore  # a URL
    # TensorStore before 0.1.14 wrote the path beside the key-value store.
    folder = PurePosixPath(path or leaf.get("path", "")).name
    if not folder or "\0" in folder:
        raise CheckpointError("its spec does not name a directory.")
    return folder


def _zarray(file: Directory) -> Zarr2 | None:
    try:
        content = read_each([file])[0]
    except FileNotFoundError:
        return None
    return _parsed(file, lambda: parse_json(content))


def _of_spec(leaf: Any) -> Zarr2 | None:
    """Return the metadata in an array's spec, which is the same as in `.zarray`; None without a spec."""
    if not isinstance(leaf, dict):
        return None
    return _parsed("the spec in the tree", lambda: {"dtype": leaf["dtype"]} | leaf["metadata"])


def _parsed(what: Any, read: Callable[[], Any]) -> Zarr2:
    try:
        return Zarr2.parse(read())
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{what} is not metadata of a zarr array: {error!r}. Copy it again.") from None


def _alike(like: Any) -> Zarr2:
    """Return metadata from a struct, for an array that was written as one chunk."""
    if like is None:
        raise CheckpointError(
            "its .zarray is missing, and the tree lacks its shape and dtype. Copy the checkpoint with "
            "its hidden files, or give them: open_t5x(path, like=tree)."
        )
    return Zarr2(like.shape, like.shape, np.dtype(like.dtype), {"id": "zstd"})
