"""The arrays that lie beside T5X's tree, each in a directory of its own, and the specs of them in it.

    {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": "target.w/"},
     "metadata": {"chunks": [3, 8], "compressor": {"id": "gzip", "level": 1}, "shape": [12, 8]}}

The specs are TensorStore's. The first that Orbax wrote has a text instead, PLACEHOLDER://target.w.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from meshwright.arrays import LazyArray
from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats.readers._zarr2 import ZARRAY, Zarr2, zarr_array
from meshwright.storage import Directory

_SPEC = {"driver", "kvstore", "metadata"}
_PLACEHOLDER = "PLACEHOLDER://"


def is_spec(leaf: Any) -> bool:
    """Say whether a dictionary is TensorStore's spec of an array, and not parameters that are called so."""
    has_keys = isinstance(leaf, dict) and leaf.keys() >= _SPEC
    return has_keys and isinstance(leaf["driver"], str) and isinstance(leaf["metadata"], dict)


def is_elsewhere(leaf: Any) -> bool:
    return is_spec(leaf) or (isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER))


def array_beside(directory: Directory, name: str, leaf: Any, version: int | None, like: Any) -> LazyArray:
    """Return an array that lies in a directory of its own.

    Raises:
      CheckpointError: It is not known how, or is stored in a way that is not read.
      DamagedError: Its metadata is damaged.
    """
    folder = directory / _folder(leaf)
    zarr = _zarray(folder / ZARRAY) or _of_spec(leaf) or _alike(like)
    if isinstance(leaf, dict):
        _check_agreement(zarr, leaf, version)
    array = zarr_array(folder, name, zarr)
    if array.dtype != np.uint16:
        return array
    if version == 2:  # which had no other way to store bfloat16
        return array.view("bfloat16")
    raise CheckpointError("uint16, which T5X does not write: it may be bfloat16 that was copied bit by bit.")


def _check_agreement(zarr: Zarr2, spec: Mapping[str, Any], version: int | None) -> None:
    """Compare what is said beside an array with what the tree says of it.

    Raises:
      DamagedError: They contradict each other.
    """
    shape, dtype = spec["metadata"].get("shape"), spec["metadata"].get("dtype", spec.get("dtype"))
    if shape not in (None, list(zarr.shape)):
        raise DamagedError(f"it has shape {list(zarr.shape)} in its .zarray, but {shape} in the tree.")
    if dtype is None or (version == 2 and zarr.dtype == np.uint16 and dtype == "bfloat16"):
        return
    if zarr.dtype != _dtype_of(dtype):
        raise DamagedError(f"it has dtype {zarr.dtype} in its .zarray, but {dtype} in the tree.")


def _dtype_of(said: Any) -> np.dtype | None:
    """Return the dtype that a spec says. A name says no order of bytes: T5X writes the lowest first."""
    try:
        dtype = np.dtype(said)
    except (TypeError, ValueError, SyntaxError):  # the last is NumPy's, of "1(", say
        return None
    return dtype if str(said).startswith((">", "<")) else dtype.newbyteorder("<")


def _folder(leaf: Any) -> str:
    """Return the name of an array's directory; where that was when it was written does not matter."""
    if isinstance(leaf, str):
        return PurePosixPath(leaf.removeprefix(_PLACEHOLDER)).name
    if leaf["driver"] != "zarr":
        raise CheckpointError(f"it is stored by TensorStore's driver {leaf['driver']}, and read is zarr.")
    kvstore = leaf["kvstore"]
    path = kvstore.get("path") if isinstance(kvstore, dict) else kvstore  # an address
    # TensorStore before 0.1.14 wrote the path beside the key-value store.
    folder = PurePosixPath(path or leaf.get("path", "")).name
    if not folder or "\0" in folder:
        raise CheckpointError("its spec does not say in which directory it lies.")
    return folder


def _zarray(file: Directory) -> Zarr2 | None:
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    return _parsed(file, lambda: json.loads(content))


def _of_spec(leaf: Any) -> Zarr2 | None:
    """Return what the spec in the tree says of an array, which is as much as `.zarray` has."""
    if not isinstance(leaf, dict):
        return None
    return _parsed("the spec in the tree", lambda: {"dtype": leaf["dtype"]} | leaf["metadata"])


def _parsed(what: Any, read: Callable[[], Any]) -> Zarr2:
    try:
        return Zarr2.parse(read())
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{what} is no metadata of a zarr array: {error!r}. Copy it again.") from None


def _alike(like: Any) -> Zarr2:
    """Return the metadata of an array that was written as one chunk."""
    if like is None:
        raise CheckpointError(
            "its .zarray is missing, and the tree does not say its shape and dtype. Copy the checkpoint with "
            "its hidden files, or say them: open_t5x(path, like=tree)."
        )
    return Zarr2(like.shape, like.shape, np.dtype(like.dtype), {"id": "zstd"})
