"""Reads trees written by `flax.serialization.to_bytes`: one file, several with an index, or one per step.

    flax_model.msgpack                      a Flax model of Hugging Face
    flax_model-00001-of-00002.msgpack       one in several files, with flax_model.msgpack.index.json
    checkpoint_100                          a step of `flax.training.checkpoints`

Lists and tuples are stored as dictionaries whose keys are numbers. Leaves that are text become `extra`.
"""

from collections.abc import Mapping
from typing import Any

from meshwright.base._internal import Directory, tree
from meshwright.checkpoints._arrays._lazy import LazyArray, in_memory
from meshwright.checkpoints._formats.readers._file import check_listed, only_index, read_index
from meshwright.checkpoints._formats.readers._flax_msgpack import is_map, read_tree
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader, complete_in, step_of, steps_in
from meshwright.checkpoints._formats.readers._t5x import refuse_version_0

_INDEX = "*.msgpack.index.json"


def _recognises(path: Directory) -> bool:
    return any(path.glob(_INDEX)) or bool(_files(path))


def _files(path: Directory) -> list[Directory]:
    """Return the file of the checkpoint at `path`; of several steps, that of the newest."""
    if not path.is_dir():
        return [path] if is_map(path) else []
    single = [file for file in path.glob("*.msgpack") if is_map(file)]
    return single if len(single) == 1 else steps_in(path, is_map)[-1:]


def _open(path: Directory) -> Foreign:
    if index := only_index(path, _INDEX, "flax_model.msgpack"):
        return _opened(path, _indexed(path, index))
    (file,) = _files(path)
    content = read_tree(file)
    refuse_version_0(content, file)
    return _opened(file, tree.named_leaves(content))


def _indexed(directory: Directory, index: Directory) -> dict[str, Any]:
    """Return the leaves, each from the file that the index names for it."""
    files, _ = read_index(index)
    by_file = {file: tree.named_leaves(read_tree(directory / file)) for file in sorted(set(files.values()))}
    named = {tree.name_of(name.split("/")): file for name, file in files.items()}
    check_listed(index, named, by_file)
    return {name: by_file[file][name] for name, file in named.items()}


def _opened(path: Directory, leaves: Mapping[str, Any]) -> Foreign:
    texts = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, str | bytes)}
    arrays = {
        name: leaf if isinstance(leaf, LazyArray) else in_memory(leaf)
        for name, leaf in leaves.items()
        if name not in texts
    }
    return Foreign(path, READER.name, arrays, step_of(path.name), extra=texts)


def _steps(directory: Directory) -> dict[int, Directory]:
    return complete_in(steps_in(directory, is_map), is_map)


READER = Reader("Flax msgpack", _recognises, _open, _steps)
