"""Adapters of PEFT that are of some layers only, or of other ranks in some: with zeros, which add nothing.

Source: peft 0.21, `tuners/tuners_utils.py::check_target_module_exists`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoints._internal import Source, as_source
from meshwright.errors import CheckpointError, listed
from meshwright.lm._models._map import Map
from meshwright.lm._tuning._peft_config import rank_of
from meshwright.lm._tuning._peft_names import PREFIX, modules_of


def on_all_layers(
    source: Source, said: Mapping[str, Any], path: Path, names: Map, num_layers: Mapping[str, int]
) -> Source:
    """Return the arrays of an adapter, with PEFT's names, for all layers and with one rank."""
    arrays, wrong = {name: np.asarray(x) for name, x in source.arrays().items()}, []
    for module, ours in modules_of(names).items():
        numbers = range(num_layers[ours] if "{}" in module else 1)
        layers = [module.replace("{}", str(number)) for number in numbers]
        of_a, of_b = ([f"{PREFIX}{layer}.{part}.weight" for layer in layers] for part in ("lora_A", "lora_B"))
        for layer, a, b in zip(layers, of_a, of_b, strict=True):
            has_a, has_b, rank = a in arrays, b in arrays, rank_of(said, layer)
            if has_a != has_b:
                wrong.append(f"{b if has_a else a} is missing")
            elif has_a and arrays[a].shape[:1] != (rank,):
                wrong.append(f"{a} has shape {arrays[a].shape}, but its rank is {rank}")
            elif not has_a and any(each in arrays for each in of_a):
                if _is_named(said, layer):
                    wrong.append(f"{a} is missing")
                elif said.get("use_dora"):
                    wrong.append(f"{layer} has no magnitude, but here DoRA is of all layers")
        arrays |= _of_one_rank(arrays, of_a, 0) | _of_one_rank(arrays, of_b, 1)
    if wrong:
        raise CheckpointError(
            f"{source} is not the adapter that {path} describes, or not whole: {listed(wrong)}. Save it "
            "anew, or merge it in PEFT (`merge_and_unload`)."
        )
    return as_source(arrays, str(source))


def _is_named(said: Mapping[str, Any], module: str) -> bool:
    """Return whether `target_modules` names a module, if nothing else says which layers have an adapter."""
    targets = said.get("target_modules") or ()
    if said.get("layers_to_transform") is not None or said.get("exclude_modules") or targets == "all-linear":
        return False
    if isinstance(targets, str):
        return bool(re.fullmatch(targets, module))
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _of_one_rank(arrays: Mapping[str, np.ndarray], names: list[str], dim: int) -> dict[str, np.ndarray]:
    """Return matrices with zeros where one is missing or has a lower rank; none if all are missing."""
    there = [arrays[name] for name in names if name in arrays]
    if not there or any(x.ndim != 2 for x in there):  # which is told with the shapes of the model
        return {}
    rank, none = max(x.shape[dim] for x in there), np.take(there[0], [], dim)
    return {
        name: np.pad(x, [(0, rank - x.shape[dim] if each == dim else 0) for each in (0, 1)])
        for name, x in ((name, arrays.get(name, none)) for name in names)
    }
