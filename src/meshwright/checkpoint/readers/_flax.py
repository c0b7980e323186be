"""Trees that `flax.serialization.to_bytes` wrote: a file, several with an index, or one for each step.

    flax_model.msgpack                      as Hugging Face's Flax models were kept
    flax_model-00001-of-00002.msgpack       or these, and flax_model.msgpack.index.json
    checkpoint_100                          as `flax.training.checkpoints` called them

Lists and tuples are dictionaries there, by number. Text is no array and is given as `extra`.
"""

import json
from typing import Any

from meshwright import tree
from meshwright.checkpoint._lazy import LazyArray, in_memory
from meshwright.checkpoint._object_path import Directory
from meshwright.checkpoint.readers._file import head
from meshwright.checkpoint.readers._flax_msgpack import read_tree
from meshwright.checkpoint.readers._reader import Foreign, Reader
from meshwright.checkpoint.readers._steps import step_of, steps_in
from meshwright.errors import DamagedError

_INDEX = "*.msgpack.index.json"
_KEY_AT = {0xDE: 3, 0xDF: 5}
"""Where the first key of a map stands, after the bytes that count its entries; otherwise at 1."""
_TEXTS = {*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB}


def _recognises(place: Directory) -> bool:
    return bool(_files(place))


def _is_map(file: Directory) -> bool:
    """Say whether a file begins as the msgpack of a dictionary with text for keys does."""
    start = head(file, 6)
    if not start or not (0x80 < start[0] < 0x90 or start[0] in _KEY_AT):
        return False
    key = start[_KEY_AT.get(start[0], 1) :]
    return bool(key) and key[0] in _TEXTS


def _files(place: Directory) -> list[Directory]:
    """Return the files of the checkpoint at `place`, of the newest step if there are several."""
    if not place.is_dir():
        return [place] if _is_map(place) else []
    if indices := list(place.glob(_INDEX)):
        return [place / name for name in _indexed(indices[0])]
    single = [file for file in place.glob("*.msgpack") if _is_map(file)]
    return single if len(single) == 1 else steps_in(place, _is_map)[-1:]


def _indexed(index: Directory) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise DamagedError(f"{index} is no index of msgpack files: {error!r}.") from None


def _open(place: Directory) -> Foreign:
    files = _files(place)
    leaves: dict[str, Any] = {}
    for file in files:
        try:
            leaves |= tree.named_leaves(read_tree(file))
        except FileNotFoundError:
            raise DamagedError(f"{file} is missing. Copy it again.") from None
    texts = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, str | bytes)}
    held = {
        name: leaf if isinstance(leaf, LazyArray) else in_memory(leaf)
        for name, leaf in leaves.items()
        if name not in texts
    }
    path = files[0] if len(files) == 1 else place
    return Foreign(path, READER.name, held, step_of(path.name), extra=texts)


READER = Reader("Flax msgpack", _recognises, _open)
