"""T5X's checkpoints, of versions 2 and 3, and of the time when Orbax began to write them.

    checkpoint_200/
      checkpoint                      Flax's msgpack: {"version": 3, "optimizer": {"target": …, "state": …}}
      target.encoder.wi.kernel/       a zarr v2 array, where the msgpack holds TensorStore's spec of it
        .zarray, 0.0, 0.1, …
      PINNED                          if it is never to be deleted

Leaves are called as T5X calls them: `target/encoder/wi/kernel`, `state/step`, `state/param_states/…`,
`flax_mutables/…`. What is None, or empty, is no leaf. A single file of msgpack may hold all arrays.

Source: `checkpoints.py` of github.com/google-research/t5x.
"""

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from jax import ShapeDtypeStruct

from meshwright import tree
from meshwright.checkpoint._lazy import LazyArray, in_memory
from meshwright.checkpoint._object_path import Directory, location
from meshwright.checkpoint.readers._file import head
from meshwright.checkpoint.readers._flax_msgpack import read_tree
from meshwright.checkpoint.readers._reader import Foreign, Reader
from meshwright.checkpoint.readers._steps import newest, steps_in
from meshwright.checkpoint.readers._zarr2 import ZARRAY, Zarr2, zarr_array
from meshwright.errors import CheckpointError, DamagedError

NAME, TREE, PINNED = "T5X", "checkpoint", "PINNED"
VERSIONS = range(2, 4)

_SPEC = {"driver", "kvstore", "metadata"}
_PLACEHOLDER, _ORBAX_ROOT = "PLACEHOLDER://", "_optimizer/"
_KEYS = tuple(bytes([0xA0 + len(key)]) + key for key in (b"version", b"optimizer", b"_optimizer"))
_BEGINNING_NBYTES = 16
_NUM_THREADS = 16


def has_tree(place: Directory) -> bool:
    """Say whether a file, or the one in a directory, begins as T5X's tree, whichever key comes first."""
    return any(head(file, _BEGINNING_NBYTES)[1:].startswith(_KEYS) for file in (place, place / TREE))


def is_step(place: Directory) -> bool:
    """Say whether `place` is one checkpoint, or what a save has left that did not come to its end."""
    return has_tree(place) or (not head(place / TREE, 1) and any(place.glob(f"target.*/{ZARRAY}")))


def open_t5x(path: str | Directory, like: tree.PyTree = None) -> Foreign:
    """Open a checkpoint, or the newest in a directory of them.

    Args:
      like: a tree that is named as the checkpoint's, of arrays or structs, for the shapes and dtypes of
        arrays that have neither a `.zarray` nor a spec, as some of the first that Orbax wrote.

    Raises:
      CheckpointError: there is no complete one; it is of another version; or what is known of its arrays does
        not suffice.
      DamagedError: its tree is not what was written.
    """
    step = _complete_step(location(path))
    file = step if step.is_file() else step / TREE
    version, state = _state(read_tree(file), file)
    leaves = tree.named_leaves(state, is_leaf=_is_spec)
    texts = {name: leaf for name, leaf in leaves.items() if _is_text(leaf)}
    arrays = {name.removeprefix(_ORBAX_ROOT): leaves[name] for name in leaves if name not in texts}
    held = _held(arrays, file, version, tree.named_leaves(like))
    extra = {"pinned": (file.parent / PINNED).is_file(), **texts}
    empty = tree.empty_nodes(state, is_leaf=_is_spec)
    return Foreign(step, NAME, held, _step(step, held), {"version": version}, extra, empty)


def _recognises(place: Directory) -> bool:
    return is_step(place) or bool(steps_in(place, is_step)) or bool(_temporaries(place))


READER = Reader(NAME, _recognises, open_t5x)


def _temporaries(place: Directory) -> list[str]:
    return sorted(entry.name for entry in place.glob("checkpoint_*.tmp-*")) if place.is_dir() else []


def _complete_step(place: Directory) -> Directory:
    """Return the directory of one checkpoint, or the file that is one.

    Raises:
      CheckpointError: There is none that is complete: the tree is written last.
    """
    if place.name == TREE and place.is_file():
        return place.parent
    steps = [place] if is_step(place) else steps_in(place, is_step)
    if not steps:
        temporaries = ", ".join(_temporaries(place))
        unfinished = f", only {temporaries}: a save that did not come to its end" if temporaries else ""
        raise CheckpointError(f"{place} holds no complete T5X checkpoint{unfinished}.")
    step = newest(steps, has_tree)
    if not has_tree(step):
        raise CheckpointError(
            f"{step} has arrays of T5X, but no file {TREE}, or an empty one, which says what they are and is "
            "written last: its save did not come to its end, or it was not all copied."
        )
    return step


def _state(content: Any, file: Directory) -> tuple[int | None, Mapping[str, Any]]:
    """Return the version, and the tree of the state; Orbax's has no version.

    Raises:
      CheckpointError: It is a version that is not read.
      DamagedError: There is no such tree.
    """
    version = None
    if isinstance(content, dict) and content.keys() & {"version", "optimizer"}:
        version, content = content.get("version", 1), content.get("optimizer")
        if version not in VERSIONS:
            raise CheckpointError(
                f"{file} is of T5X's version {version}; read are 2 and 3. "
                "Load it with the T5X that wrote it, and save it with a newer one."
            )
    if not isinstance(content, dict):
        raise DamagedError(f"{file} holds no tree of a state. Copy the checkpoint again.")
    return version, content


def _held(
    leaves: Mapping[str, Any], file: Directory, version: int | None, like: Mapping[str, ShapeDtypeStruct]
) -> dict[str, LazyArray]:
    """Return the arrays of a tree's leaves.

    Raises:
      CheckpointError: Some cannot be read; all are listed.
      DamagedError: So they are, and of one the metadata is damaged.
    """

    def opened(name: str, leaf: Any) -> LazyArray | CheckpointError:
        try:
            if _is_elsewhere(leaf):
                return _beside(file.parent, name, leaf, version, like.get(name))
            return leaf if isinstance(leaf, LazyArray) else in_memory(leaf)
        except CheckpointError as error:
            return error

    with ThreadPoolExecutor(_NUM_THREADS) as threads:  # each is a request, on a network disk too
        found = dict(zip(leaves, threads.map(opened, leaves, leaves.values()), strict=True))
    problems = {name: each for name, each in found.items() if isinstance(each, CheckpointError)}
    if problems:
        is_damaged = any(isinstance(each, DamagedError) for each in problems.values())
        listed = "\n  ".join(f"{name}: {each}" for name, each in problems.items())
        raise (DamagedError if is_damaged else CheckpointError)(f"{file} cannot be read:\n  {listed}")
    return {name: each for name, each in found.items() if isinstance(each, LazyArray)}


def _is_spec(leaf: Any) -> bool:
    """Say whether a dictionary is TensorStore's spec of an array, and not parameters that are called so."""
    has_keys = isinstance(leaf, dict) and leaf.keys() >= _SPEC
    return has_keys and isinstance(leaf["driver"], str) and isinstance(leaf["metadata"], dict)


def _is_elsewhere(leaf: Any) -> bool:
    return _is_spec(leaf) or (isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER))


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, str | bytes) and not _is_elsewhere(leaf)


def _beside(directory: Directory, name: str, leaf: Any, version: int | None, like: Any) -> LazyArray:
    """Return an array that lies in a directory of its own.

    Raises:
      CheckpointError: It is not known how, or is stored in a way that is not read.
      DamagedError: Its metadata is damaged.
    """
    folder = directory / _folder(leaf)
    zarr = _zarray(folder / ZARRAY) or _of_spec(leaf) or _alike(like)
    shape = leaf["metadata"].get("shape") if isinstance(leaf, dict) else None
    if shape not in (None, list(zarr.shape)):
        raise CheckpointError(f"it has shape {list(zarr.shape)} in its .zarray, but {shape} in the tree.")
    array = zarr_array(folder, name, zarr)
    if array.dtype != np.uint16:
        return array
    if version == 2:  # which had no other way to store bfloat16
        return array.view("bfloat16")
    raise CheckpointError("uint16, which T5X does not write: it may be bfloat16 that was copied bit by bit.")


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


def _step(directory: Directory, held: Mapping[str, LazyArray]) -> int | None:
    """Return the step that the name says, or else the state."""
    if match := re.search(r"(?:^|checkpoint_)(\d+)$", directory.name):
        return int(match[1])
    step = held.get("state/step")
    return int(np.asarray(step)) if step is not None and not step.shape else None
