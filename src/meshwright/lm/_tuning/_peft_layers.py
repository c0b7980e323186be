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
    source: Source, settings: Mapping[str, Any], path: Path, names: Map, num_layers: Mapping[str, int]
) -> Source:
    """Return the arrays of an adapter, with PEFT's names, for all layers and with one rank."""
    arrays, wrong = {name: np.asarray(x) for name, x in source.arrays().items()}, []
    for module, ours in modules_of(names).items():
        numbers = range(num_layers[ours] if "{}" in module else 1)
        layers = [module.replace("{}", str(number)) for number in numbers]
        a_names, b_names = ([f"{PREFIX}{layer}.{part}.weight" for layer in layers] for part in ("lora_A", "lora_B"))
        for layer, a, b in zip(layers, a_names, b_names, strict=True):
            has_a, has_b, rank = a in arrays, b in arrays, rank_of(settings, layer)
            if has_a != has_b:
                wrong.append(f"{b if has_a else a} is missing")
            elif has_a and arrays[a].shape[:1] != (rank,):
                wrong.append(f"{a} has shape {arrays[a].shape}, but its rank is {rank}")
            elif not has_a and any(each in arrays for each in a_names):
                if _is_named(settings, layer):
                    wrong.append(f"{a} is missing")
                elif settings.get("use_dora"):
                    wrong.append(f"{layer} has no magnitude, but here DoRA is of all layers")
        arrays |= _padded_to_one_rank(arrays, a_names, 0) | _padded_to_one_rank(arrays, b_names, 1)
    if wrong:
        raise CheckpointError(
            f"{source} is not the adapter that {path} describes, or not whole: {listed(wrong)}. Save it "
            "anew, or merge it in PEFT (`merge_and_unload`)."
        )
    return as_source(arrays, str(source))


def _is_named(settings: Mapping[str, Any], module: str) -> bool:
    """Return whether `target_modules` names a module, if nothing else says which layers have an adapter."""
    targets = settings.get("target_modules") or ()
    if settings.get("layers_to_transform") is not None or settings.get("exclude_modules") or targets == "all-linear":
        return False
    if isinstance(targets, str):
        return bool(re.fullmatch(targets, module))
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _padded_to_one_rank(arrays: Mapping[str, np.ndarray], names: list[str], dim: int) -> dict[str, np.ndarray]:
    """Return matrices with zeros where one is missing or has a lower rank; none if all are missing."""
    matrices = [arrays[name] for name in names if name in arrays]
    if not matrices or any(x.ndim != 2 for x in matrices):  # which is told with the shapes of the model
        return {}
    rank, empty = max(x.shape[dim] for x in matrices), np.take(matrices[0], [], dim)
    return {
        name: np.pad(x, [(0, rank - x.shape[dim] if axis == dim else 0) for axis in (0, 1)])
        for name, x in ((name, arrays.get(name, empty)) for name in names)
    }
