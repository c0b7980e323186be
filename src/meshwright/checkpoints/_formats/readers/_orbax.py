"""Reads Orbax's checkpoints of trees: versions 0 and 1, with and without OCDBT, in zarr 2 and 3.

    100/                             a step of a CheckpointManager
      _CHECKPOINT_METADATA           JSON: the handler of each item, and the times of start and commit
      metrics/metrics                JSON: the scores by which a manager keeps steps
      default/                       an item, here a tree; there may be others
        _METADATA                    JSON: the keys of each leaf
        manifest.ocdbt, d/           a database of TensorStore, which holds
        params.w/.zarray, …          an array for each leaf, its keys joined by dots; or these are files
        checkpoint                   in versions before _METADATA: Flax's msgpack, a tree with arrays in it,
                                     or with the text PLACEHOLDER://params.w for those beside the file
        ocdbt.process_0/, …          the files of each process, merged in manifest.ocdbt at the end of a save
        array_metadatas/, _strings.json
    101.orbax-checkpoint-tmp/        a step that is being written, or whose save was killed

A tree may also be stored by itself. If there is one tree, the leaves have their names in it. If there are
several, the names of the items come first: `params/…` and `state/…`.

Source: `_src/metadata/tree.py` and `_src/serialization` of github.com/google/orbax, and files it wrote.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.base._internal import Directory, tree
from meshwright.checkpoints._arrays._lazy import LazyArray, in_memory
from meshwright.checkpoints._formats.readers import _t5x
from meshwright.checkpoints._formats.readers._file import head, read_document, read_json
from meshwright.checkpoints._formats.readers._flax_msgpack import read_tree
from meshwright.checkpoints._formats.readers._reader import (
    Foreign,
    Reader,
    complete_in,
    newest,
    step_of,
    steps_in,
)
from meshwright.checkpoints._formats.readers._tensorstore import (
    errors_naming_action,
    open_arrays,
    shared_context,
    store_of,
    tensorstore_for,
)
from meshwright.errors import CheckpointError, DamagedError

log = logging.getLogger("meshwright")

_ITEMS, _COMMITTED, TEMPORARY = "_CHECKPOINT_METADATA", "commit_success.txt", ".orbax-checkpoint-tmp"
_TREE, _OCDBT, _AGGREGATE, _STRINGS = "_METADATA", "manifest.ocdbt", "checkpoint", "_strings.json"
_JSON, _SCORES = "metadata", "metrics/metrics"
_PLACEHOLDER = "PLACEHOLDER://"
_OF_PROCESS = f"ocdbt.process_0/{_OCDBT}"
_OF_TREES = re.compile("PyTree|Standard")


def _recognises(path: Directory) -> bool:
    return _is_step(path) or bool(steps_in(path, _is_step))


def _is_step(path: Directory) -> bool:
    if (path / _ITEMS).is_file() or _is_tree(path):
        return True
    # T5X's steps are not searched: each of their many arrays would cost requests.
    return not _t5x.is_step(path) and bool(_trees(path))


def _is_tree(path: Directory) -> bool:
    if any((path / file).is_file() for file in (_TREE, _OCDBT, _OF_PROCESS)):
        return True
    # A msgpack map; TensorFlow's file of this name is text. If T5X wrote it, its own reader opens it.
    return head(path / _AGGREGATE, 1) >= b"\x80" and not _t5x.has_tree(path)


def _trees(path: Directory) -> dict[str, Directory]:
    """Return the items of a step that are trees, by name."""
    entries = sorted(path.iterdir(), key=str) if path.is_dir() else []
    return {entry.name: entry for entry in entries if _is_tree(entry)}


def _open(path: Directory) -> Foreign:
    step = path if _is_step(path) else newest(_steps(path), _is_complete)
    if _t5x.is_step(step):
        return _t5x.open_t5x(step)
    if not _is_complete(step):
        raise CheckpointError(
            f"{step} is not complete: its save is still running, or was killed. Open another step."
        )
    metadata = _document(step / _ITEMS)
    handlers = _handlers(step, metadata)
    trees = {"": step} if _is_tree(step) else _trees(step)
    trees |= {item: step / item for item, handler in handlers.items() if _OF_TREES.search(handler)}
    extra = _extra(step, metadata, handlers)
    if not trees and not extra:
        raise CheckpointError(
            f"{step} has nothing that can be read: neither a tree of arrays nor an item in JSON."
        )
    if unread := sorted(handlers.keys() - trees.keys() - extra.keys()):
        log.warning(
            "%s: items that only their own handlers can read are left out: %s", step, ", ".join(unread)
        )
    by_item = {item: open_tree(directory) for item, directory in trees.items()}
    if len(by_item) == 1:
        (arrays,) = by_item.values()
    else:
        arrays = {f"{item}/{name}": x for item, leaves in by_item.items() for name, x in leaves.items()}
    numbers = (number for number in map(step_of, (step.name, step.parent.name)) if number is not None)
    return Foreign(
        step,
        READER.name,
        arrays,
        next(numbers, None),
        {"item_handlers": metadata.get("item_handlers")},
        extra,
    )


def _steps(directory: Directory) -> list[Directory]:
    """Return the steps in a directory, also incomplete ones, the lowest first.

    T5X's steps are included: a run may have changed from T5X's own format to Orbax, or back.
    """

    def is_step(entry: Directory) -> bool:
        return TEMPORARY in entry.name or _is_step(entry) or _t5x.is_step(entry)

    return steps_in(directory, is_step, lambda name: step_of(name.partition(TEMPORARY)[0]))


def _complete_steps(directory: Directory) -> dict[int, Directory]:
    return {} if _is_step(directory) else complete_in(_steps(directory), _is_complete)


def _is_complete(step: Directory) -> bool:
    """Return whether a save is complete: then the step has its final name or, in a store, a marker file."""
    if TEMPORARY in f"{step.parent.name}/{step.name}" or any(step.glob(f"*{TEMPORARY}*")):
        return False
    if _t5x.is_step(step):
        return _t5x.has_tree(step)
    metadata = _document(step / _ITEMS)
    # Orbax writes the time of the commit last.
    is_open = "init_timestamp_nsecs" in metadata and not metadata.get("commit_timestamp_nsecs")
    return not is_open or (step / _COMMITTED).is_file()


def _handlers(step: Directory, metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the handler of each item, by name; a tree that is stored by itself has the name ""."""
    handlers = metadata.get("item_handlers") or {}
    if isinstance(handlers, str):
        return {"": handlers}
    if not isinstance(handlers, dict):
        raise DamagedError(f"{step / _ITEMS} does not describe items: {handlers!r}. Copy it again.")
    if lacking := [item for item in handlers if not (step / item).is_dir()]:
        raise DamagedError(
            f"{step} has no {', '.join(lacking)}, which its {_ITEMS} lists. Copy it again, or open the item "
            "that you need by its own path."
        )
    return {item: str(handler) for item, handler in handlers.items()}


def open_tree(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of one tree by their Meshwright names; no values are read."""
    if (directory / _TREE).is_file():
        return _described(directory)
    if (directory / _AGGREGATE).is_file():
        return _aggregate(directory)
    raise DamagedError(f"{directory} has no {_TREE}, which lists the arrays and their names. Copy it again.")


def _described(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of a tree whose leaves are listed in `_METADATA`."""
    metadata = _document(directory / _TREE)
    try:
        leaves = metadata["tree_metadata"].values()
        paths = {tree.name_of(keys): ".".join(keys) for keys in map(_keys, leaves) if keys is not None}
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{directory / _TREE} does not describe a tree: {error!r}. Copy it again."
        ) from None
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    # Versions without this field did not write chunks that are all zeros.
    may_lack = not metadata.get("store_array_data_equal_to_fill_value")
    specs = {
        name: {"driver": driver, "path": path, "fill_missing_data_reads": may_lack}
        for name, path in paths.items()
    }
    arrays, impls = open_arrays(directory, _store(directory), specs), _key_impls(directory)
    return {name: replace(x, key_impl=impls.get(paths[name])) for name, x in arrays.items()}


def _keys(leaf: Mapping[str, Any]) -> list[str] | None:
    """Return the keys of a leaf; None for a leaf that is not an array: None, an empty dictionary or text."""
    value = leaf["value_metadata"]
    if value["skip_deserialize"] or value["value_type"] in ("None", "string"):
        return None
    return [str(key["key"]) for key in leaf["key_metadata"]]


def _key_impls(directory: Directory) -> dict[str, str]:
    """Return the implementations of typed PRNG keys, by the paths of the arrays."""
    impls: dict[str, str] = {}
    for file in directory.glob("array_metadatas/process_*"):
        try:
            for metadata in (entry["array_metadata"] for entry in read_document(file)["array_metadatas"]):
                if impl := (metadata.get("ext_metadata") or {}).get("random_key_impl"):
                    impls[metadata["param_name"]] = impl
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"{file} does not describe arrays: {error!r}. Copy it again.") from None
    return impls


def _aggregate(directory: Directory) -> dict[str, LazyArray]:
    """Return the arrays of a tree in one msgpack file, both those in the file and those beside it."""
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
    arrays = open_arrays(directory, _store(directory), specs) if specs else {}
    within = {name: leaf for name, leaf in leaves.items() if not isinstance(leaf, str | bytes)}
    return arrays | {name: x if isinstance(x, LazyArray) else in_memory(x) for name, x in within.items()}


def _store(directory: Directory) -> Any:
    files = store_of(directory)
    if not (directory / _OCDBT).is_file():
        if (directory / _OF_PROCESS).is_file():
            raise DamagedError(
                f"{directory} has no {_OCDBT}, which merges the files of all processes. Its save was killed, "
                "or it was not copied completely."
            )
        return files
    spec = {"driver": "ocdbt", "base": files.spec().to_json()}
    with errors_naming_action(f"open {directory}"):
        return tensorstore_for(str(directory)).KvStore.open(spec, context=shared_context()).result()


def _extra(step: Directory, metadata: Mapping[str, Any], handlers: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a step that are not arrays: items in JSON, texts of trees, scores."""
    in_json = [step / item / _JSON for item, handler in handlers.items() if "Json" in handler]
    files = [file for file in (in_json if handlers else step.glob(f"*/{_JSON}")) if file.is_file()]
    items = {file.parent.name: read_json(file) for file in files}
    documents = map(_document, [step / _STRINGS, *step.glob(f"*/{_STRINGS}")])
    texts = {name: text for document in documents for name, text in document.items()}
    scores = step / _SCORES
    metrics = read_json(scores) if scores.is_file() else metadata.get("metrics")
    rest = {"strings": texts, "metrics": metrics, "custom_metadata": metadata.get("custom_metadata")}
    return items | {name: value for name, value in rest.items() if value}


def _document(file: Directory) -> dict[str, Any]:
    """Return the object in a JSON file; {} if the file does not exist."""
    try:
        return read_document(file)
    except FileNotFoundError:
        return {}


READER = Reader("Orbax", _recognises, _open, _complete_steps)
