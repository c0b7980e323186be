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
from collections.abc import Callable, Iterable, Mapping
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
from meshwright.checkpoint.readers._zarr2 import ZARRAY, Zarr2, zarr_array
from meshwright.errors import CheckpointError, DamagedError

NAME, TREE, PINNED = "T5X", "checkpoint", "PINNED"
VERSIONS = range(2, 4)

_STEP = re.compile(r"checkpoint_(\d+)")
_SPEC = {"driver", "kvstore", "metadata"}
_PLACEHOLDER = "PLACEHOLDER://"
_KEYS = tuple(bytes([0xA0 + len(key)]) + key for key in (b"version", b"optimizer", b"_optimizer"))
_BEGINNING_NBYTES = 16
_NUM_THREADS = 16


def recognises(place: Directory) -> bool:
    """Say whether `place` is a T5X checkpoint, or a directory of such."""
    if place.is_file():
        return _is_tree(place)
    return _is_tree(place / TREE) or bool(_steps(place)) or bool(_unfinished(place)) or _lacks_tree(place)


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
    step = _step_directory(location(path))
    directory, file = (step.parent, step) if step.is_file() else (step, step / TREE)
    content = read_tree(file)
    version, state = _state(content, file)
    found = tree.named_leaves(state, is_leaf=_is_spec)
    held = _held(found, directory, version, tree.named_leaves(like), file)
    extra = {"pinned": (directory / PINNED).is_file()}
    return Foreign(step, NAME, held, _step(step, held), {"version": version}, extra)


READER = Reader(NAME, recognises, open_t5x)


def _is_tree(file: Directory) -> bool:
    """Say whether a file begins as T5X's tree, whichever key comes first."""
    return head(file, _BEGINNING_NBYTES)[1:].startswith(_KEYS)


def _steps(place: Directory) -> dict[int, Directory]:
    """Return the directories of the complete checkpoints in a directory, by step."""
    if not place.is_dir():
        return {}
    found = {entry: _STEP.fullmatch(entry.name) for entry in place.iterdir()}
    return {int(match[1]): entry for entry, match in found.items() if match and _is_tree(entry / TREE)}


def _unfinished(place: Directory) -> list[Directory]:
    """Return the directories whose save did not come to its end: the tree is written last."""
    if not place.is_dir():
        return []
    lacking = [entry for entry in place.glob("checkpoint_*") if _lacks_tree(entry)]
    return sorted([*place.glob("checkpoint_*.tmp-*"), *lacking], key=str)


def _lacks_tree(place: Directory) -> bool:
    return place.is_dir() and not (place / TREE).exists() and any(place.glob(f"target.*/{ZARRAY}"))


def _step_directory(place: Directory) -> Directory:
    """Return the directory of one checkpoint, or the file that is one.

    Raises:
      CheckpointError: There is none that is complete.
    """
    if place.is_file():
        return place.parent if place.name == TREE else place
    if (place / TREE).is_file():
        return place
    if steps := _steps(place):
        return steps[max(steps)]
    if _lacks_tree(place):
        raise CheckpointError(
            f"{place} has arrays of T5X, but not the file {TREE}, which says what they are and is written "
            "last: its save did not come to its end, or it was not all copied."
        )
    unfinished = ", ".join(entry.name for entry in _unfinished(place))
    raise CheckpointError(
        f"{place} holds no complete T5X checkpoint, only {unfinished}: a save that did not come to its end."
    )


def _state(content: Any, file: Directory) -> tuple[int | None, Any]:
    """Return the version, and the tree of the state; Orbax's has no version.

    Raises:
      CheckpointError: It is a version that is not read.
    """
    if not isinstance(content, dict):
        raise DamagedError(f"{file} holds no tree. Copy the checkpoint again.")
    if "version" not in content and "optimizer" not in content:
        return None, {**content.pop("_optimizer", {}), **content}
    version = content.get("version", 1)
    if version not in VERSIONS:
        raise CheckpointError(
            f"{file} is of T5X's version {version}; read are 2 and 3. "
            "Load it with the T5X that wrote it, and save it with a newer one."
        )
    return version, content["optimizer"]


def _held(
    found: Mapping[str, Any],
    directory: Directory,
    version: int | None,
    like: Mapping[str, ShapeDtypeStruct],
    file: Directory,
) -> dict[str, LazyArray]:
    """Return the arrays of a tree's leaves.

    Raises:
      CheckpointError: Some cannot be read; all are listed.
      DamagedError: A `.zarray` is damaged.
    """
    folders = {name: directory / _folder(leaf) for name, leaf in found.items() if _is_elsewhere(leaf)}
    metadata = dict(zip(folders, _zarrays(folders.values()), strict=True))
    held, problems = {}, []
    for name, leaf in found.items():
        try:
            if name not in folders:
                held[name] = leaf if isinstance(leaf, LazyArray) else in_memory(leaf)
            else:
                zarr = metadata[name] or _of_spec(leaf) or _alike(like.get(name))
                held[name] = _array(folders[name], name, _checked(zarr, leaf), version)
        except CheckpointError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError(f"{file} cannot be read:\n  " + "\n  ".join(problems))
    return held


def _in_tree(leaf: Any) -> LazyArray:
    if isinstance(leaf, str | bytes | list):
        raise CheckpointError(f"it is no array, but {leaf!r:.40}.")
    return leaf if isinstance(leaf, LazyArray) else in_memory(leaf)


def _is_spec(leaf: Any) -> bool:
    if not isinstance(leaf, dict) or not leaf.keys() >= _SPEC:
        return False
    return isinstance(leaf["kvstore"], dict) and isinstance(leaf["metadata"], dict)


def _is_elsewhere(leaf: Any) -> bool:
    return _is_spec(leaf) or (isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER))


def _folder(leaf: Any) -> str:
    """Return the name of an array's directory; where that was when it was written does not matter."""
    if isinstance(leaf, str):
        return PurePosixPath(leaf.removeprefix(_PLACEHOLDER)).name
    # TensorStore before 0.1.14 wrote the path beside the key-value store.
    return PurePosixPath(leaf["kvstore"].get("path") or leaf.get("path", "")).name


def _zarrays(folders: Iterable[Directory]) -> list[Zarr2 | None]:
    """Return what the arrays' `.zarray` say, or None where there is none."""
    with ThreadPoolExecutor(_NUM_THREADS) as threads:  # each is a request, on a network disk too
        return list(threads.map(_zarray, folders))


def _zarray(folder: Directory) -> Zarr2 | None:
    try:
        content = (folder / ZARRAY).read_bytes()
    except FileNotFoundError:
        return None
    return _parsed(folder / ZARRAY, lambda: json.loads(content))


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


def _checked(zarr: Zarr2, leaf: Any) -> Zarr2:
    shape = leaf["metadata"].get("shape") if isinstance(leaf, dict) else None
    if shape is not None and tuple(shape) != zarr.shape:
        raise CheckpointError(f"it has shape {zarr.shape} in its .zarray, but {tuple(shape)} in the tree.")
    return zarr


def _array(folder: Directory, name: str, zarr: Zarr2, version: int | None) -> LazyArray:
    array = zarr_array(folder, name, zarr)
    if array.dtype != np.uint16:
        return array
    if version == 2:  # which had no other way to store bfloat16
        return array.view("bfloat16")
    raise CheckpointError("uint16, which T5X does not write: it may be bfloat16 that was copied bit by bit.")


def _step(directory: Directory, held: Mapping[str, LazyArray]) -> int | None:
    """Return the step that the name says, or else the state."""
    if match := re.search(r"(?:^|checkpoint_)(\d+)$", directory.name):
        return int(match[1])
    return int(np.asarray(held["state/step"])) if "state/step" in held else None
