"""Reads TensorFlow's checkpoints; the variables of T5 by Mesh TensorFlow get their names in T5X.

    decoder/block_001/layer_000/SelfAttention/q           target/decoder/layers_1/self_attention/query/kernel
    decoder/block_001/layer_000/SelfAttention/q_slot_vr   state/param_states/decoder/…/query/kernel/v_row
    global_step                                           state/step

An optimizer of T5X expects `m`, `v`, `v_row` and `v_col` for each parameter; those that Adafactor did not use
are added as arrays of one zero.

Variables of other models keep their names in TensorFlow.

Source: `checkpoint_importer.py` of github.com/google-research/t5x.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from meshwright.base._internal import Directory, location
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._formats.readers._bundle import is_table, read_bundle
from meshwright.checkpoints._formats.readers._file import File, head
from meshwright.checkpoints._formats.readers._reader import Foreign, Reader, complete_in
from meshwright.errors import CheckpointError

_T5 = "T5 by Mesh TensorFlow"
_STATE_FILE, _INDEX = "checkpoint", ".index"
# The directory may have been moved.
_NEWEST = re.compile(r'model_checkpoint_path: *"(?:[^"]*/)?([^"/\0]+)"')
_STEP_OF = re.compile(r".*-(\d+)")
_TARGET, _SLOTS, _STEP = "target/", "state/param_states/", "state/step"
_SLOT_NAMES = {"v": "v", "vr": "v_row", "vc": "v_col"}
_TOWERS = {"encoder": "encoder", "decoder": "decoder", "transformer": "decoder"}
_PROJECTIONS = {"q": "query", "k": "key", "v": "value", "o": "out"}
_NORMS = {
    "encoder": ["pre_attention_layer_norm", "pre_mlp_layer_norm"],
    "decoder": ["pre_self_attention_layer_norm", "pre_cross_attention_layer_norm", "pre_mlp_layer_norm"],
    "transformer": ["pre_self_attention_layer_norm", "pre_mlp_layer_norm"],
}
_BIAS_OF_LAYER = re.compile(r"/layers_(\d+)(?=/relpos_bias/)")


def _recognises(path: Directory) -> bool:
    return _prefix(path) is not None


def _open(path: Directory) -> Foreign:
    plain = open_tensorflow(path)
    if {_t5x_name(name) for name in plain.named_arrays} <= {None, _STEP}:
        return plain
    return replace(plain, format=_T5, named_arrays=with_t5x_names(plain.named_arrays, plain.path))


def open_tensorflow(path: str | Directory) -> Foreign:
    """Open a checkpoint of TensorFlow, with TensorFlow's own names of the variables.

    `open_source` does the same, except for T5 by Mesh TensorFlow, whose variables get T5X's names. Variables
    that hold text, such as the object graph, are left out.

    Args:
      path: The common prefix of the checkpoint's files, `model.ckpt-100`, or a directory, of which the newest
        is opened; local or in a store.

    Raises:
      CheckpointError: There is no checkpoint, or a variable is of a kind that is not supported.
      DamagedError: The index is missing or damaged.

    Example:
      >>> source = mw.checkpoints.open_tensorflow("model.ckpt-100")  # doctest: +SKIP
      >>> mw.checkpoints.load(source)["w"].shape  # doctest: +SKIP
      (8, 4)
    """
    directory = location(path)
    prefix = _prefix(directory)
    if prefix is None:
        raise CheckpointError(f"{directory} has no checkpoint of TensorFlow (.index and .data files).")
    return Foreign(prefix, READER.name, read_bundle(prefix), _step_of(prefix.name))


def _prefix(path: Directory) -> Directory | None:
    """Return the common prefix of a checkpoint's files: `path`, or that of the newest checkpoint in it."""
    if (path.parent / f"{path.name}{_INDEX}").is_file():
        return path
    if _is_index(path):
        return _without_index(path)
    state = path if path.name == _STATE_FILE and path.is_file() else path / _STATE_FILE
    if named := _NEWEST.match(head(state, 1 << 16).decode(errors="replace")):
        return state.parent / named[1]
    return max(_prefixes(path), key=lambda prefix: _step_of(prefix.name) or 0, default=None)


def _prefixes(directory: Directory) -> list[Directory]:
    """Return the file prefixes of the checkpoints in a directory, in order of their steps."""
    indices = (
        [entry for entry in directory.glob(f"*{_INDEX}") if _is_index(entry)] if directory.is_dir() else []
    )
    return sorted(map(_without_index, indices), key=lambda prefix: (_step_of(prefix.name) or 0, prefix.name))


def _is_index(file: Directory) -> bool:
    return file.name.endswith(_INDEX) and file.is_file() and is_table(File(file))


def _without_index(file: Directory) -> Directory:
    return file.parent / file.name.removesuffix(_INDEX)


def _step_of(name: str) -> int | None:
    match = _STEP_OF.fullmatch(name)
    return int(match[1]) if match else None


def with_t5x_names(variables: Mapping[str, LazyArray], source: object) -> dict[str, LazyArray]:
    """Return the variables under T5X's names, and further slots that T5X expects."""
    names: dict[str | None, list[str]] = {}
    for name in variables:
        names.setdefault(_t5x_name(name), []).append(name)
    if unknown := names.pop(None, []):
        raise CheckpointError(
            f"{source} has {len(unknown)} variables that T5 by Mesh TensorFlow does not have: "
            f"{', '.join(unknown[:10])}. To open it with TensorFlow's names, use "
            "mw.checkpoints.open_tensorflow(path)."
        )
    if several := [" and ".join(variants) for variants in names.values() if len(variants) > 1]:
        raise CheckpointError(f"{source} has more than one variable for a parameter: {'; '.join(several)}.")
    arrays = {new: variables[name] for new, (name,) in names.items() if new is not None}
    if _STEP in arrays:
        arrays[_STEP] = arrays[_STEP].astype(np.int32)
    return _with_shared_bias({**arrays, **_unused_slots(arrays)})


def _t5x_name(name: str) -> str | None:
    if name == "global_step":
        return _STEP
    variable, is_slot, slot = name.partition("_slot_")
    path = _path(variable.split("/"))
    if path is None or (is_slot and slot not in _SLOT_NAMES):
        return None
    return f"{_SLOTS}{path}/{_SLOT_NAMES[slot]}" if is_slot else f"{_TARGET}{path}"


def _path(keys: list[str]) -> str | None:
    """Return T5X's path for the variable of these keys; None if it has none."""
    match keys:
        case ["shared", "embedding"]:
            return "token_embedder/embedding"
        case ["decoder" | "transformer", "logits", "kernel"]:
            return "decoder/logits_dense/kernel"
        case [tower, "embedding"] if tower in _TOWERS:
            return f"{_TOWERS[tower]}/token_embedder/embedding"
        case [tower, "final_layer_norm" | "rms_norm", "scale"] if tower in _TOWERS:
            return f"{_TOWERS[tower]}/{_TOWERS[tower]}_norm/scale"
        case [tower, block, layer, *rest] if tower in _TOWERS:
            number = re.fullmatch(r"block_(\d+)", block), re.fullmatch(r"layer_(\d+)", layer)
            if number[0] and number[1] and (inner := _in_layer(tower, int(number[1][1]), rest)):
                return f"{_TOWERS[tower]}/layers_{int(number[0][1])}/{inner}"
    return None


def _in_layer(tower: str, layer: int, keys: list[str]) -> str | None:
    match keys:
        case ["SelfAttention", "relative_attention_bias"] if layer == 0:
            return "relpos_bias/rel_embedding"
        case ["SelfAttention", "q" | "k" | "v" | "o" as which]:
            attention = "attention" if tower == "encoder" else "self_attention"
            return f"{attention}/{_PROJECTIONS[which]}/kernel"
        case ["EncDecAttention", "q" | "k" | "v" | "o" as which]:
            return f"encoder_decoder_attention/{_PROJECTIONS[which]}/kernel"
        case ["DenseReluDense", which, "kernel"] if re.fullmatch(r"w[io](_\d+)?", which):
            return f"mlp/{which}/kernel"
        case ["layer_norm" | "rms_norm", "scale"] if layer < len(_NORMS[tower]):
            return f"{_NORMS[tower][layer]}/scale"
    return None


def _unused_slots(names: Iterable[str]) -> dict[str, LazyArray]:
    present = set(names)
    unused = set()
    for path in (name.removeprefix(_TARGET) for name in present if name.startswith(_TARGET)):
        has_rows = f"{_SLOTS}{path}/v_row" in present
        has_whole = f"{_SLOTS}{path}/v" in present
        slots = ["m", *(["v"] if has_rows else []), *(["v_row", "v_col"] if has_whole else [])]
        unused |= {f"{_SLOTS}{path}/{slot}" for slot in slots}
    zero = LazyArray((1,), np.dtype("float32"), lambda index: np.zeros(1, np.float32)[index])
    return dict.fromkeys(sorted(unused - present), zero)


def _with_shared_bias(arrays: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Remove the layer from the name of the relative position bias if only layer 0 has one: all share it."""
    layers = {match[1] for name in arrays if (match := _BIAS_OF_LAYER.search(name))}
    if layers != {"0"}:
        return dict(arrays)
    return {_BIAS_OF_LAYER.sub("", name): array for name, array in arrays.items()}


def _steps(directory: Directory) -> dict[int, Directory]:
    return complete_in(_prefixes(directory), lambda _: True, _step_of)


READER = Reader("TensorFlow", _recognises, _open, _steps)
