"""Orbax's checkpoints of trees, of its versions 0 and 1, with and without OCDBT, in zarr 2 and 3.

    100/                             a step of a CheckpointManager
      _CHECKPOINT_METADATA           JSON: what wrote each item, when it began and when it was done
      metrics/metrics                JSON: the scores by which a manager keeps steps
      default/                       an item: here a tree; others may lie beside it
        _METADATA                    JSON: the keys of each leaf
        manifest.ocdbt, d/           a database of TensorStore's, in which there is
        params.w/.zarray, …          an array for each leaf, its keys joined by dots; or these are files
        checkpoint                   before there was _METADATA: Flax's msgpack, a tree, in which is an array
                                     or, where it lies beside the file, the text PLACEHOLDER://params.w
        ocdbt.process_0/, …          what each process wrote, which a save joins in manifest.ocdbt at its end
        array_metadatas/, _strings.json
    101.orbax-checkpoint-tmp/        a step that is being written, or whose save was killed

A tree may also lie by itself. Where there is one tree, its leaves are called as in it; where there are
several, `params/…` and `state/…` by their items.

Source: `_src/metadata/tree.py` and `_src/serialization` of github.com/google/orbax, and files it wrote.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright import tree
from meshwright.arrays import LazyArray, in_memory
from meshwright.errors import CheckpointError, DamagedError
from meshwright.formats.readers import _t5x
from meshwright.formats.readers._file import head, read_document, read_json
from meshwright.formats.readers._flax_msgpack import read_tree
from meshwright.formats.readers._reader import Foreign, Reader
from meshwright.formats.readers._steps import complete_in, newest, step_of, steps_in
from meshwright.formats.readers._tensorstore import shared_context, store_of, telling, tensorstore_for
from meshwright.formats.readers._zarr import open_arrays
from meshwright.storage import Directory

log = logging.getLogger("meshwright")

_ITEMS, _COMMITTED, TEMPORARY = "_CHECKPOINT_METADATA", "commit_success.txt", ".orbax-checkpoint-tmp"
_TREE, _OCDBT, _AGGREGATE, _STRINGS = "_METADATA", "manifest.ocdbt", "checkpoint", "_strings.json"
_JSON, _SCORES = "metadata", "metrics/metrics"
_PLACEHOLDER = "PLACEHOLDER://"
_OF_PROCESS = f"ocdbt.process_0/{_OCDBT}"
_OF_TREES = re.compile("PyTree|Standard")


def _recognises(place: Directory) -> bool:
    return _is_step(place) or bool(steps_in(place, _is_step))


def _is_step(place: Directory) -> bool:
    if (place / _ITEMS).is_file() or _is_tree(place):
        return True
    # T5X's are not looked through: each of their many arrays would cost requests.
    return not _t5x.is_step(place) and bool(_trees(place))


def _is_tree(place: Directory) -> bool:
    if any((place / file).is_file() for file in (_TREE, _OCDBT, _OF_PROCESS)):
        return True
    # A map, while TensorFlow's file of this name is text. Where T5X wrote it, its own reader knows more.
    return head(place / _AGGREGATE, 1) >= b"\x80" and not _t5x.has_tree(place)


def _trees(place: Directory) -> dict[str, Directory]:
    """Return the items of a step that are trees, by name."""
    entries = sorted(place.iterdir(), key=str) if place.is_dir() else []
    return {entry.name: entry for entry in entries if _is_tree(entry)}


def _open(place: Directory) -> Foreign:
    step = place if _is_step(place) else newest(_steps(place), _is_complete)
    if _t5x.is_step(step):
        return _t5x.open_t5x(step)
    if not _is_complete(step):
        raise CheckpointError(
            f"{step} is not complete. Its save is still running, or was killed: open another."
        )
    said = _document(step / _ITEMS)
    handlers = _handlers(step, said)
    trees = {"": step} if _is_tree(step) else _trees(step)
    trees |= {item: step / item for item, handler in handlers.items() if _OF_TREES.search(handler)}
    extra = _extra(step, said, handlers)
    if not trees and not extra:
        raise CheckpointError(
            f"{step} holds nothing that is read: neither a tree of arrays nor an item in JSON."
        )
    if unread := sorted(handlers.keys() - trees.keys() - extra.keys()):
        log.warning("%s: left out are items that only their own handlers read: %s", step, ", ".join(unread))
    held = {item: open_tree(directory) for item, directory in trees.items()}
    if len(held) == 1:
        (arrays,) = held.values()
    else:
        arrays = {f"{item}/{name}": x for item, leaves in held.items() for name, x in leaves.items()}
    numbers = (number for number in map(step_of, (step.name, step.parent.name)) if number is not None)
    return Foreign(
        step, READER.name, arrays, next(numbers, None), {"item_handlers": said.get("item_handlers")}, extra
    )


def _steps(place: Directory) -> list[Directory]:
    """Return the steps in a directory, and those that are being written, the lowest first.

    T5X's too: a run may have gone over to Orbax, or back.
    """

    def is_step(entry: Directory) -> bool:
        return TEMPORARY in entry.name or _is_step(entry) or _t5x.is_step(entry)

    return steps_in(place, is_step, lambda name: step_of(name.partition(TEMPORARY)[0]))


def _complete_steps(place: Directory) -> dict[int, Directory]:
    return {} if _is_step(place) else complete_in(_steps(place), _is_complete)


def _is_complete(step: Directory) -> bool:
    """Say whether a save has come to its end: all is renamed then, and in a store it leaves a mark."""
    if TEMPORARY in f"{step.parent.name}/{step.name}" or any(step.glob(f"*{TEMPORARY}*")):
        return False
    if _t5x.is_step(step):
        return _t5x.has_tree(step)
    said = _document(step / _ITEMS)
    is_open = "init_timestamp_nsecs" in said and not said.get("commit_timestamp_nsecs")
    return not is_open or (step / _COMMITTED).is_file()


def _handlers(step: Directory, said: Mapping[str, Any]) -> dict[str, str]:
    """Return what wrote each item, by name; that of a tree by itself is called "".

    Raises:
      DamagedError: An item is not there, or it is not said what wrote which.
    """
    handlers = said.get("item_handlers") or {}
    if isinstance(handlers, str):
        return {"": handlers}
    if not isinstance(handlers, dict):
        raise DamagedError(f"{step / _ITEMS} does not describe items: {handlers!r}. Copy it again.")
    if lacking := [item for item in handlers if not (step / item).is_dir()]:
        raise DamagedError(
            f"{step} has no {', '.join(lacking)}, which its {_ITEMS} says it has. Copy it again, or open "
            "what you need of it by its own path."
        )
    return {item: str(handler) for item, handler in handlers.items()}


def open_tree(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of one tree by our names; nothing of them is read.

    Raises:
      DamagedError: One of them, or what describes the tree, is missing or spoilt.
      UsageError: TensorStore is not installed.
    """
    if (directory / _TREE).is_file():
        return _described(directory)
    if (directory / _AGGREGATE).is_file():
        return _aggregate(directory)
    raise DamagedError(
        f"{directory} has no {_TREE}, which says what arrays there are and how they are called. "
        "Copy it again."
    )


def _described(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of a tree of which a file says what leaves it has."""
    said = _document(directory / _TREE)
    try:
        leaves = said["tree_metadata"].values()
        paths = {tree.name_of(keys): ".".join(keys) for keys in map(_keys, leaves) if keys is not None}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{directory / _TREE} does not describe a tree: {error!r}. Copy it again."
        ) from None
    driver = "zarr3" if said.get("use_zarr3") else "zarr"
    # Before it was said, chunks of nothing but zeros were not written.
    may_lack = not said.get("store_array_data_equal_to_fill_value")
    specs = {
        name: {"driver": driver, "path": path, "fill_missing_data_reads": may_lack}
        for name, path in paths.items()
    }
    arrays, impls = open_arrays(directory, _store(directory), specs), _key_impls(directory)
    return {name: replace(x, key_impl=impls.get(paths[name])) for name, x in arrays.items()}


def _keys(leaf: Mapping[str, Any]) -> list[str] | None:
    """Return the keys of a leaf; None of what is no array: None, an empty dictionary, text."""
    value = leaf["value_metadata"]
    if value["skip_deserialize"] or value["value_type"] in ("None", "string"):
        return None
    return [str(key["key"]) for key in leaf["key_metadata"]]


def _key_impls(directory: Directory) -> dict[str, str]:
    """Return the implementations of typed PRNG keys, by the arrays' paths.

    Raises:
      DamagedError: A file that says so is spoilt.
    """
    impls: dict[str, str] = {}
    for file in directory.glob("array_metadatas/process_*"):
        try:
            for said in (each["array_metadata"] for each in read_document(file)["array_metadatas"]):
                if impl := (said.get("ext_metadata") or {}).get("random_key_impl"):
                    impls[said["param_name"]] = impl
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{file} does not describe arrays: {error!r}. Copy it again.") from None
    return impls


def _aggregate(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of a tree that is one file, and of those that lie beside it."""
    content = read_tree(directory / _AGGREGATE)
    _t5x.refuse_version_0(content, directory / _AGGREGATE)
    leaves = tree.named_leaves(content, is_leaf=lambda x: isinstance(x, LazyArray))
    beside = {
        name: leaf.removeprefix(_PLACEHOLDER)
        for name, leaf in leaves.items()
        if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER)
    }
    specs = {
        name: {"driver": "zarr", "path": path, "fill_missing_data_reads": True}
        for name, path in beside.items()
    }
    held = open_arrays(directory, _store(directory), specs) if specs else {}
    within = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, str | bytes)}
    return held | {name: x if isinstance(x, LazyArray) else in_memory(x) for name, x in within.items()}


def _store(directory: Directory) -> Any:
    files = store_of(directory)
    if not (directory / _OCDBT).is_file():
        if (directory / _OF_PROCESS).is_file():
            raise DamagedError(
                f"{directory} has no {_OCDBT}, which joins what each process wrote. Its save was killed, or "
                "it was not all copied."
            )
        return files
    spec = {"driver": "ocdbt", "base": files.spec().to_json()}
    with telling(f"open {directory}"):
        return tensorstore_for(str(directory)).KvStore.open(spec, context=shared_context()).result()


def _extra(step: Directory, said: Mapping[str, Any], handlers: Mapping[str, str]) -> dict[str, Any]:
    """Return what a step holds besides arrays: items in JSON, texts of trees, scores."""
    in_json = [step / item / _JSON for item, handler in handlers.items() if "Json" in handler]
    files = [file for file in (in_json if handlers else step.glob(f"*/{_JSON}")) if file.is_file()]
    items = {file.parent.name: read_json(file) for file in files}
    documents = map(_document, [step / _STRINGS, *step.glob(f"*/{_STRINGS}")])
    texts = {name: text for document in documents for name, text in document.items()}
    scores = step / _SCORES
    metrics = read_json(scores) if scores.is_file() else said.get("metrics")
    rest = {"strings": texts, "metrics": metrics, "custom_metadata": said.get("custom_metadata")}
    return items | {name: value for name, value in rest.items() if value}


def _document(file: Directory) -> dict[str, Any]:
    """Return the dictionary that a file of JSON is; an empty one where there is no file.

    Raises:
      DamagedError: It is something else.
    """
    try:
        return read_document(file)
    except FileNotFoundError:
        return {}


READER = Reader("Orbax", _recognises, _open, _complete_steps)
