"""Reads T5X's checkpoints: versions 2 and 3, and the first ones that Orbax wrote for T5X.

    checkpoint_200/
      checkpoint                      Flax's msgpack: {"version": 3, "optimizer": {"target": …, "state": …}}
      target.encoder.wi.kernel/       a zarr v2 array, where the msgpack holds TensorStore's spec of it
        .zarray, 0.0, 0.1, …
      PINNED                          if it must not be deleted

Leaves have T5X's names: `target/encoder/wi/kernel`, `state/step`, `state/param_states/…`, `flax_mutables/…`.
None and empty containers are not leaves. A single msgpack file may hold all arrays.

Source: `checkpoints.py` of github.com/google-research/t5x.
"""

import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax import ShapeDtypeStruct

from meshwright.base._internal import Directory, location, tree
from meshwright.checkpoints._arrays._lazy import LazyArray, in_memory
from meshwright.checkpoints._formats.readers._file import head
from meshwright.checkpoints._formats.readers._flax_msgpack import is_map, read_tree
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader
from meshwright.checkpoints._formats.readers._steps import complete_in, newest, steps_in
from meshwright.checkpoints._formats.readers._t5x_arrays import array_beside, is_elsewhere, is_spec
from meshwright.checkpoints._formats.readers._zarr2 import ZARRAY
from meshwright.errors import CheckpointError, DamagedError

NAME, TREE, PINNED = "T5X", "checkpoint", "PINNED"
VERSIONS = (2, 3)

_ORBAX_ROOT = "_optimizer/"
_KEYS = tuple(bytes([0xA0 + len(key)]) + key for key in (b"version", b"optimizer", b"_optimizer"))
_BEGINNING_NBYTES = 16
_NUM_THREADS = 16


def has_tree(place: Directory) -> bool:
    """Return whether a file, or the one in a directory, begins like T5X's tree, whichever key comes first."""
    return any(head(file, _BEGINNING_NBYTES)[1:].startswith(_KEYS) for file in (place, place / TREE))


def is_step(place: Directory) -> bool:
    """Return whether `place` is a single checkpoint, complete or not."""
    return has_tree(place) or (not head(place / TREE, 1) and any(place.glob(f"target.*/{ZARRAY}")))


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
    """Return the path of a complete checkpoint: a directory, or a single file."""
    if place.name == TREE and place.is_file():
        return place.parent
    steps = [place] if _may_be_step(place) else steps_in(place, _may_be_step)
    if not steps:
        temporaries = ", ".join(_temporaries(place))
        unfinished = f", only {temporaries}: a save that was not completed" if temporaries else ""
        raise CheckpointError(f"{place} has no complete T5X checkpoint{unfinished}.")
    step = newest(steps, _has_map)
    if not _has_map(step):
        raise CheckpointError(
            f"{step} has arrays of T5X, but its file {TREE}, which describes them and is written last, is "
            "missing or empty: its save was not completed, or it was not copied completely."
        )
    return step


def _has_map(place: Directory) -> bool:
    """Return whether there is a tree; that of version 0 may begin with any key."""
    return has_tree(place) or is_map(place) or is_map(place / TREE)


def _may_be_step(place: Directory) -> bool:
    return is_step(place) or _has_map(place)


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


def _held(
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

    with ThreadPoolExecutor(_NUM_THREADS) as threads:  # each costs a request, also on a network disk
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
    """Return the step in the name or, without one, the step in the state."""
    if match := re.search(r"(?:^|checkpoint_)(\d+)$", directory.name):
        return int(match[1])
    step = held.get("state/step")
    return int(np.asarray(step)) if step is not None and not step.shape else None
