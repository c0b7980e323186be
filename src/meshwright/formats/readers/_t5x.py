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

import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import ShapeDtypeStruct

from meshwright import tree
from meshwright.arrays import LazyArray, in_memory
from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats.readers._file import head
from meshwright.formats.readers._flax_msgpack import is_map, read_tree
from meshwright.formats.readers._reader import Foreign, Reader
from meshwright.formats.readers._steps import complete_in, newest, steps_in
from meshwright.formats.readers._t5x_arrays import array_beside, is_elsewhere, is_spec
from meshwright.formats.readers._zarr2 import ZARRAY
from meshwright.storage import Directory, location

NAME, TREE, PINNED = "T5X", "checkpoint", "PINNED"
VERSIONS = (2, 3)

_ORBAX_ROOT = "_optimizer/"
_KEYS = tuple(bytes([0xA0 + len(key)]) + key for key in (b"version", b"optimizer", b"_optimizer"))
_BEGINNING_NBYTES = 16
_NUM_THREADS = 16


def has_tree(place: Directory) -> bool:
    """Say whether a file, or the one in a directory, begins as T5X's tree, whichever key comes first."""
    return any(head(file, _BEGINNING_NBYTES)[1:].startswith(_KEYS) for file in (place, place / TREE))


def is_step(place: Directory) -> bool:
    """Say whether `place` is one checkpoint, or what a save has left that did not come to its end."""
    return has_tree(place) or (not head(place / TREE, 1) and any(place.glob(f"target.*/{ZARRAY}")))


def open_t5x(
    path: str | Directory, like: tree.PyTree = None, versions: Collection[int] = VERSIONS
) -> Foreign:
    """Open a checkpoint, or the newest in a directory of them.

    Args:
      like: a tree that is named as the checkpoint's, of arrays or structs, for the shapes and dtypes of
        arrays that have neither a `.zarray` nor a spec, as some of the first that Orbax wrote.
      versions: those that are taken. Versions 0 and 1 call leaves otherwise than later ones; where they are
        asked for, leaves are called as they are there.

    Raises:
      CheckpointError: there is no complete one; it is of another version; or what is known of its arrays does
        not suffice.
      DamagedError: its tree is not what was written.
    """
    step = _complete_step(location(path))
    file = step if step.is_file() else step / TREE
    version, state = _state(read_tree(file), file, versions)
    leaves = tree.named_leaves(state, is_leaf=is_spec)
    texts = {name: leaf for name, leaf in leaves.items() if _is_text(leaf)}
    arrays = {name.removeprefix(_ORBAX_ROOT): leaves[name] for name in leaves if name not in texts}
    held = _held(arrays, file, version, tree.named_leaves(like))
    extra = {"pinned": (file.parent / PINNED).is_file(), **texts}
    empty = tree.empty_nodes(state, is_leaf=is_spec)
    return Foreign(step, NAME, held, _step(step, held), {"version": version}, extra, empty)


def _recognises(place: Directory) -> bool:
    return is_step(place) or bool(steps_in(place, is_step)) or bool(_temporaries(place))


def _steps(place: Directory) -> dict[int, Directory]:
    return complete_in(steps_in(place, is_step), has_tree)


READER = Reader(NAME, _recognises, open_t5x, _steps, has_pins=True)


def _temporaries(place: Directory) -> list[str]:
    return sorted(entry.name for entry in place.glob("checkpoint_*.tmp-*")) if place.is_dir() else []


def _complete_step(place: Directory) -> Directory:
    """Return the directory of one checkpoint, or the file that is one.

    Raises:
      CheckpointError: There is none that is complete: the tree is written last.
    """
    if place.name == TREE and place.is_file():
        return place.parent
    steps = [place] if _may_be_step(place) else steps_in(place, _may_be_step)
    if not steps:
        temporaries = ", ".join(_temporaries(place))
        unfinished = f", only {temporaries}: a save that did not come to its end" if temporaries else ""
        raise CheckpointError(f"{place} holds no complete T5X checkpoint{unfinished}.")
    step = newest(steps, _has_map)
    if not _has_map(step):
        raise CheckpointError(
            f"{step} has arrays of T5X, but no file {TREE}, or an empty one, which says what they are and is "
            "written last: its save did not come to its end, or it was not all copied."
        )
    return step


def _has_map(place: Directory) -> bool:
    """Say whether there is a tree: that of version 0 begins with any key."""
    return has_tree(place) or is_map(place) or is_map(place / TREE)


def _may_be_step(place: Directory) -> bool:
    return is_step(place) or _has_map(place)


def refuse_version_0(content: Any, file: Directory) -> None:
    """Raise if a tree has TensorStore's specs for leaves, and no version: then it is of T5X's first.

    Raises:
      CheckpointError: It is.
    """
    if _version(content) == 0:
        _state(content, file, VERSIONS)


def _version(content: Any) -> int | None:
    """Return the version of a tree; None of Orbax's, which has none."""
    if isinstance(content, dict) and content.keys() & {"version", "optimizer"}:
        return content.get("version", 1)
    leaves = jax.tree.leaves(content, is_leaf=is_spec)
    return 0 if any(map(is_spec, leaves)) else None


def _state(content: Any, file: Directory, versions: Collection[int]) -> tuple[int | None, Mapping[str, Any]]:
    """Return the version, and the tree of the state; Orbax's has no version.

    Raises:
      CheckpointError: It is a version that is not read.
      DamagedError: There is no such tree.
    """
    version = _version(content)
    if version is not None and version not in versions:
        raise CheckpointError(
            f"{file} is of T5X's version {version}; read are 2 and 3. Load it with the T5X that wrote it, "
            "and save it with a newer one. Or take it with the names that it has: "
            "mw.formats.open_t5x(path, versions=(0, 1))."
        )
    if isinstance(content, dict) and content.keys() & {"version", "optimizer"}:
        content = content.get("optimizer")
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
            if is_elsewhere(leaf):
                return array_beside(file.parent, name, leaf, version, like.get(name))
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


def _is_text(leaf: Any) -> bool:
    return isinstance(leaf, str | bytes) and not is_elsewhere(leaf)


def _step(directory: Directory, held: Mapping[str, LazyArray]) -> int | None:
    """Return the step that the name says, or else the state."""
    if match := re.search(r"(?:^|checkpoint_)(\d+)$", directory.name):
        return int(match[1])
    step = held.get("state/step")
    return int(np.asarray(step)) if step is not None and not step.shape else None
