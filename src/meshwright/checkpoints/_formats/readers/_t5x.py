"""Reads T5X's checkpoints: versions 2 and 3, and the first ones that Orbax wrote for T5X.

    checkpoint_200/
      checkpoint                      Flax's msgpack: {"version": 3, "optimizer": {"target": …, "state": …}}
      target.encoder.wi.kernel/       a zarr v2 array, where the msgpack holds TensorStore's spec of it
        .zarray, 0.0, 0.1, …
      PINNED                          if it must not be deleted

Leaves have T5X's names: `target/encoder/wi/kernel`, `state/step`, `state/param_states/…`, `flax_mutables/…`.
None and empty containers are not leaves. A single msgpack file may hold all arrays.

The spec of an array, in the form of TensorStore; the first trees that Orbax wrote have a text instead,
PLACEHOLDER://target.w:

    {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": "target.w/"},
     "metadata": {"chunks": [3, 8], "compressor": {"id": "gzip", "level": 1}, "shape": [12, 8]}}

Source: `checkpoints.py` of github.com/google-research/t5x.
"""

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import jax
import numpy as np
from jax import ShapeDtypeStruct

from meshwright.base._internal import Directory, location, parse_json, read_each, tree
from meshwright.checkpoints._arrays._lazy import LazyArray, in_memory
from meshwright.checkpoints._formats.readers._file import head
from meshwright.checkpoints._formats.readers._flax_msgpack import is_map, read_tree
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader, complete_in, newest, steps_in
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
    # Version 2 stores bfloat16 as uint16.
    if version == 2:
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


def _dtype_of(name: Any) -> np.dtype | None:
    """Return the dtype of a spec; None if it is invalid. A name without a byte order means little-endian."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        # NumPy raises SyntaxError for "1(".
        return None
    return dtype if str(name).startswith((">", "<")) else dtype.newbyteorder("<")


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


def _parsed(source: Any, read: Callable[[], Any]) -> Zarr2:
    try:
        return Zarr2.parse(read())
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"{source} is not metadata of a zarr array: {error!r}. Copy it again.") from None


def _alike(like: Any) -> Zarr2:
    """Return metadata from a struct, for an array that was written as one chunk."""
    if like is None:
        raise CheckpointError(
            "its .zarray is missing, and the tree lacks its shape and dtype. Copy the checkpoint with "
            "its hidden files, or give them: open_t5x(path, like=tree)."
        )
    return Zarr2(like.shape, like.shape, np.dtype(like.dtype), {"id": "zstd"})


NAME, TREE, PINNED = "T5X", "checkpoint", "PINNED"
VERSIONS = (2, 3)

_ORBAX_ROOT = "_optimizer/"
_KEYS = tuple(bytes([0xA0 + len(key)]) + key for key in (b"version", b"optimizer", b"_optimizer"))
_BEGINNING_NBYTES = 16
_NUM_THREADS = 16


def has_tree(path: Directory) -> bool:
    """Return whether a file, or the one in a directory, begins like T5X's tree, whichever key comes first."""
    return any(head(file, _BEGINNING_NBYTES)[1:].startswith(_KEYS) for file in (path, path / TREE))


def is_step(path: Directory) -> bool:
    """Return whether `path` is a single checkpoint, complete or not."""
    return has_tree(path) or (not head(path / TREE, 1) and any(path.glob(f"target.*/{ZARRAY}")))


def open_t5x(
    path: str | Directory, like: tree.PyTree = None, versions: Collection[int] = VERSIONS
) -> Foreign:
    """Open a checkpoint of T5X.

    Args:
      path: A checkpoint, or a directory of them, of which the newest is opened; local or in a store.
      like: A tree of arrays or structs with the names of the checkpoint. It supplies the shapes and dtypes of
        arrays that have neither a `.zarray` nor a spec, as some of the first that Orbax wrote.
      versions: The format versions to accept. Versions 0 and 1 name leaves differently from later ones; if
        you ask for them, the leaves have those names.

    Raises:
      CheckpointError: There is no complete checkpoint, it is of another version, or the shapes and dtypes of
        arrays are not known.
      DamagedError: The file with the tree is damaged.

    Example:
      >>> path = mw.checkpoints.export_t5x({"params": {"w": jnp.ones(3)}}, "exported", step=800)
      >>> mw.checkpoints.open_t5x("exported").arrays()["target/w"].shape
      (3,)
    """
    step = _complete_step(location(path))
    file = step if step.is_file() else step / TREE
    version, state = _state(read_tree(file), file, versions)
    leaves = tree.named_leaves(state, is_leaf=is_spec)
    texts = {
        name: leaf
        for name, leaf in leaves.items()
        if isinstance(leaf, str | bytes) and not is_elsewhere(leaf)
    }
    array_leaves = {name.removeprefix(_ORBAX_ROOT): leaves[name] for name in leaves if name not in texts}
    arrays = _arrays(array_leaves, file, version, tree.named_leaves(like))
    extra = {"pinned": (file.parent / PINNED).is_file(), **texts}
    empty = tree.empty_nodes(state, is_leaf=is_spec)
    return Foreign(step, NAME, arrays, _step(step, arrays), {"version": version}, extra, empty)


def _recognises(path: Directory) -> bool:
    return is_step(path) or bool(steps_in(path, is_step)) or bool(_temporaries(path))


def _steps(directory: Directory) -> dict[int, Directory]:
    return complete_in(steps_in(directory, is_step), has_tree)


READER = Reader(NAME, _recognises, open_t5x, _steps, has_pins=True)


def _temporaries(directory: Directory) -> list[str]:
    return sorted(entry.name for entry in directory.glob("checkpoint_*.tmp-*")) if directory.is_dir() else []


def _complete_step(path: Directory) -> Directory:
    """Return the path of a complete checkpoint: a directory, or a single file."""
    if path.name == TREE and path.is_file():
        return path.parent
    steps = [path] if _may_be_step(path) else steps_in(path, _may_be_step)
    if not steps:
        temporaries = ", ".join(_temporaries(path))
        unfinished = f", only {temporaries}: a save that was not completed" if temporaries else ""
        raise CheckpointError(f"{path} has no complete T5X checkpoint{unfinished}.")
    step = newest(steps, _has_map)
    if not _has_map(step):
        raise CheckpointError(
            f"{step} has arrays of T5X, but its file {TREE}, which describes them and is written last, is "
            "missing or empty: its save was not completed, or it was not copied completely."
        )
    return step


def _has_map(path: Directory) -> bool:
    """Return whether there is a tree; that of version 0 may begin with any key."""
    return has_tree(path) or is_map(path) or is_map(path / TREE)


def _may_be_step(path: Directory) -> bool:
    return is_step(path) or _has_map(path)


def refuse_version_0(content: Any, file: Directory) -> None:
    """Raise an error if a tree is of T5X's version 0: it has no version, and specs of TensorStore as
    leaves.
    """
    if _version(content) == 0:
        _state(content, file, VERSIONS)


def _version(content: Any) -> int | None:
    """Return the version of a tree; None for Orbax's, which has none."""
    if isinstance(content, dict) and content.keys() & {"version", "optimizer"}:
        return content.get("version", 1)
    leaves = jax.tree.leaves(content, is_leaf=is_spec)
    return 0 if any(map(is_spec, leaves)) else None


def _state(content: Any, file: Directory, versions: Collection[int]) -> tuple[int | None, Mapping[str, Any]]:
    """Return the version, None for Orbax's, and the tree of the state."""
    version = _version(content)
    if version is not None and version not in versions:
        raise CheckpointError(
            f"{file} has T5X's format version {version}, but only 2 and 3 are supported. Load it with the "
            "T5X that wrote it, and save it with a newer one. Or open it with its own names: "
            "mw.checkpoints.open_t5x(path, versions=(0, 1))."
        )
    if isinstance(content, dict) and content.keys() & {"version", "optimizer"}:
        if others := content.keys() - {"version", "optimizer"}:
            raise CheckpointError(
                f"{file} has {', '.join(sorted(others))} beside version and optimizer, which T5X "
                "does not write, and which would be left out."
            )
        content = content.get("optimizer")
    if not isinstance(content, dict):
        raise DamagedError(f"{file} does not hold the tree of a state. Copy the checkpoint again.")
    return version, content


def _arrays(
    leaves: Mapping[str, Any], file: Directory, version: int | None, like: Mapping[str, ShapeDtypeStruct]
) -> dict[str, LazyArray]:
    """Return the arrays of a tree's leaves."""

    def opened(name: str, leaf: Any) -> LazyArray | CheckpointError:
        try:
            if is_elsewhere(leaf):
                return array_beside(file.parent, name, leaf, version, like.get(name))
            return leaf if isinstance(leaf, LazyArray) else in_memory(leaf)
        except CheckpointError as error:
            return error

    # Each array costs a request, also on a network disk.
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        results = dict(zip(leaves, threads.map(opened, leaves, leaves.values()), strict=True))
    problems = {name: result for name, result in results.items() if isinstance(result, CheckpointError)}
    if problems:
        is_damaged = any(isinstance(result, DamagedError) for result in problems.values())
        listed = "\n  ".join(f"{name}: {result}" for name, result in problems.items())
        raise (DamagedError if is_damaged else CheckpointError)(f"{file} cannot be read:\n  {listed}")
    return {name: result for name, result in results.items() if isinstance(result, LazyArray)}


def _step(directory: Directory, arrays: Mapping[str, LazyArray]) -> int | None:
    """Return the step in the name or, without one, the step in the state."""
    if match := re.search(r"(?:^|checkpoint_)(\d+)$", directory.name):
        return int(match[1])
    step = arrays.get("state/step")
    return int(np.asarray(step)) if step is not None and not step.shape else None
