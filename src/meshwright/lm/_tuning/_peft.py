"""Adapters in the files of PEFT, Hugging Face's library of adapters.

    adapter_config.json           the settings, the adapted modules and the name of the base model
    adapter_model.safetensors     base_model.model.{module}.lora_A.weight   [rank, in]
                                  base_model.model.{module}.lora_B.weight   [out, rank]
                                  base_model.model.{module}.lora_magnitude_vector   [out], of DoRA

Source: peft 0.21, `utils/save_and_load.py`, `tuners/lora/config.py` and `tuners/lora/dora.py`.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.base._internal import local_path, parse_object, read_file, tree, write_whole
from meshwright.checkpoints._internal import Source, open_source, source_of, staged, write_safetensors
from meshwright.errors import CheckpointError, UsageError, listed
from meshwright.lm._models import hugging_face
from meshwright.lm._tuning._adapted import parts_of
from meshwright.lm._tuning._families import family_of
from meshwright.lm._tuning._lora import Lora, check_part
from meshwright.lm._tuning._peft_config import lora_of, on_all_layers, settings_of
from meshwright.lm._tuning._peft_names import to_ours, to_theirs
from meshwright.processes._internal import on_lead
from meshwright.training._internal import key_of

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def export_adapter(
    adapter: tree.PyTree | Source,
    directory: str | Path,
    lora: Lora,
    model: str | Path,
    *,
    base: str | None = None,
) -> list[Path]:
    """Write an adapter as PEFT's files, and return their paths.

    `PeftModel.from_pretrained(model, directory)` loads it. Collective: process 0 writes.

    Args:
      adapter: The adapter: `state.params["adapter"]`, or of a run
        `mw.checkpoints.subtree(mw.checkpoints.open_source(run), "params/adapter")`.
      directory: The local directory to write to; it is created if needed.
      lora: The description of the adapter.
      model: The directory of the base model, or its `config.json`.
      base: The name or path of the base model that is written in the adapter's config, so that a loader finds
        it. None stands for the absolute path of the directory of `model`.

    Raises:
      UsageError: The directory has an adapter already; or the adapter is of a weight that PEFT has no name
        for.
      CheckpointError: `model` describes no known model, or the adapter does not fit it.

    Example:
      >>> lora, adapter = mw.lm.read_adapter("adapter", "llama")
      >>> [path.name for path in mw.lm.export_adapter(adapter, "exported", lora, "llama")]
      ['adapter_model.safetensors', 'adapter_config.json']
    """
    target = local_path(directory, "Export to a disk, and copy the files.")
    cfg = hugging_face.config(model)
    names = hugging_face.parameter_map(cfg)
    base_name = str(_directory(local_path(model)).absolute()) if base is None else base
    source = source_of(adapter, "the adapter")

    def write() -> None:
        target.mkdir(parents=True, exist_ok=True)
        if existing := [name for name in (WEIGHTS, CONFIG) if (target / name).exists()]:
            raise UsageError(f"{target} has {listed(existing)} already: choose another directory.")
        ours = tree.nested({name: np.asarray(x) for name, x in source.arrays().items()})
        theirs = to_theirs(parts_of(ours), names)
        settings = settings_of(lora, base_name, to_ours(theirs, names), names, cfg)
        with staged(target / WEIGHTS) as new:
            _write(new / WEIGHTS, theirs)
            (new / WEIGHTS).rename(target / WEIGHTS)
            # This flushes both files.
            write_whole(target / CONFIG, json.dumps(settings, indent=2).encode())

    on_lead(write)
    return [target / WEIGHTS, target / CONFIG]


def read_adapter(directory: str | Path, model: str | Path) -> tuple[Lora, tree.PyTree]:
    """Return an adapter of PEFT's: its description, and its arrays with the names here.

    `{"base": params, "adapter": arrays}` are the parameters of the model with the adapter.

    Args:
      directory: The directory with the adapter's files.
      model: The directory of the base model, or its `config.json`.

    Raises:
      CheckpointError: The files are not those of an adapter, it has a feature that is not known here, or it
        does not fit the model.

    Example:
      >>> lora, adapter = mw.lm.read_adapter("adapter", "llama")  # as PEFT has saved them
      >>> lora.rank, adapter["layers"]["q"]["lora_a"].shape
      (2, (2, 24, 2))
    """
    folder, cfg = local_path(directory), hugging_face.config(model)
    names, settings = hugging_face.parameter_map(cfg), _settings(folder / CONFIG)
    weights = tree.named_leaves(jax.eval_shape(lambda: family_of(cfg).init(cfg, key_of(0))))
    num_layers = {name: weight.shape[0] for name, weight in weights.items()}
    theirs = on_all_layers(open_source(folder / WEIGHTS), settings, folder / CONFIG, names, num_layers)
    parts = to_ours(theirs, names)
    if not parts:
        raise CheckpointError(f"{folder / WEIGHTS} has no adapter of the model.")
    lora, factors = lora_of(settings, folder / CONFIG, parts, names)
    for name, part in parts.items():
        check_part(name, weights[name], part, lora)
    for name, part in parts.items():
        part["lora_b"] = (part["lora_b"] * factors[name]).astype(np.float32)
    arrays = {
        f"{name}/{part}": x
        for name, arrays_of_weight in parts.items()
        for part, x in arrays_of_weight.items()
    }
    return lora, tree.nested({name: x.astype(np.float32) for name, x in arrays.items()})


def _write(path: Path, arrays: Source) -> None:
    """Write arrays to a file."""
    # PEFT stores magnitudes as parameters of their own, and all others as weights of PyTorch's modules.
    named_arrays = {
        name if name.endswith("lora_magnitude_vector") else f"{name}.weight": x
        for name, x in arrays.arrays().items()
    }
    structs = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in named_arrays.items()}

    def parts(name: str) -> Iterator[np.ndarray]:
        yield np.asarray(named_arrays[name])

    write_safetensors(path, structs, parts, {"format": "pt"})


def _directory(model: Path) -> Path:
    path = model.expanduser()
    return path if path.is_dir() else path.parent


def _settings(path: Path) -> Mapping[str, Any]:
    try:
        settings = parse_object(read_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{path}, which describes the adapter, does not exist.") from None
    except ValueError as error:
        raise CheckpointError(f"{path} does not describe an adapter: {error}.") from None

    def is_number(value: Any, kind: Any) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool) and value > 0

    if missing := [key for key in ("peft_type", "r", "lora_alpha") if key not in settings]:
        raise CheckpointError(f"{path} does not describe a LoRA adapter: it lacks {listed(missing)}.")
    rank, alpha = settings["r"], settings["lora_alpha"]
    if not (is_number(rank, int) and is_number(alpha, int | float)):
        raise CheckpointError(f"{path} has r={rank!r} and lora_alpha={alpha!r}; expected numbers above 0.")
    return settings
