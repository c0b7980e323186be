"""The `adapter_config.json` of PEFT: written from the description of an adapter, and read.

A config may name some layers only, or other ranks in some. Such adapters get zeros, which add nothing.

Source: peft 0.21, `tuners/lora/config.py`; for patterns, `utils/other.py::get_pattern_key`; for layers,
`tuners/tuners_utils.py::check_target_module_exists`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.checkpoints._internal import Source, as_source
from meshwright.errors import CheckpointError, UsageError, listed
from meshwright.lm._models import gpt2, t5
from meshwright.lm._models._map import Map
from meshwright.lm._tuning._lora import Lora
from meshwright.lm._tuning._peft_names import PREFIX, Parts, module_of, modules_of

# The keys that are read, and the keys that do not change the result of an adapter.
_READ_KEYS = (
    *("peft_type", "r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora", "rank_pattern"),
    *("alpha_pattern", "target_modules", "layers_to_transform", "exclude_modules"),
    # Of where an adapter is from, which arrays it has, and how they began:
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("fan_in_fan_out", "layers_pattern", "ensure_weight_tying", "megatron_core", "qalora_group_size"),
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),
)
# The values of keys that change nothing. Any other key is of a feature that is not known here, and may be
# off only: null, false, 0 or empty.
_HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "mica"),
}


def settings_of(lora: Lora, base: str, parts: Parts, names: Map, cfg: Any) -> dict[str, Any]:
    """Return the content of an `adapter_config.json`."""
    if not base:
        raise UsageError("an adapter must say which model it is for: `base` is empty.")
    ranks = {
        module_of(name, names): part["lora_a"].shape[-1] for name, part in parts.items() if "lora_a" in part
    }
    others = {re.escape(module).replace(r"\{\}", r"\d+"): r for module, r in ranks.items() if r != lora.rank}
    return {
        "peft_type": "LORA",
        "task_type": "SEQ_2_SEQ_LM" if isinstance(cfg, t5.Config) else "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "target_modules": _target_modules(ranks, names, parts),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_dora": lora.dora,
        "use_rslora": lora.rslora,
        "rank_pattern": others,
        "alpha_pattern": {key: lora.scale * (r**0.5 if lora.rslora else r) for key, r in others.items()},
        # The weights of GPT-2's `Conv1D` are [in, out].
        "fan_in_fan_out": isinstance(cfg, gpt2.Config),
        "bias": "none",
        "modules_to_save": None,
    }


def _target_modules(modules: Collection[str], names: Map, parts: Parts) -> list[str]:
    """Return the ends of modules' names, `q_proj`; or whole names, where an end is that of others, too."""
    others = {
        row.theirs.removesuffix(".weight").rpartition(".")[2]
        for row in names.rows
        if row.theirs.endswith(".weight") and row.theirs.removesuffix(".weight") not in modules
    }
    num_layers = {module_of(name, names): part["lora_b"].shape[0] for name, part in parts.items()}
    targets = []
    for module in modules:
        end = module.rpartition(".")[2]
        layers = range(num_layers[module]) if "{}" in module else [0]
        targets += [end] if end not in others else [module.replace("{}", str(layer)) for layer in layers]
    return sorted(set(targets))


def lora_of(settings: Mapping[str, Any], path: Path, parts: Parts, names: Map) -> tuple[Lora, dict[str, Any]]:
    """Return the description of an adapter, and the factor of each `lora_b` that gives it the one scale."""
    if settings.get("peft_type") != "LORA":
        raise CheckpointError(
            f"{path} is of a {settings.get('peft_type')!r} adapter; only LORA is known here."
        )
    unknown = {
        key: x
        for key, x in settings.items()
        if key not in _READ_KEYS and (x not in _HARMLESS_VALUES[key] if key in _HARMLESS_VALUES else x)
    }
    if unknown:
        features, plain = ", ".join(f"{key}={x!r}" for key, x in unknown.items()), ""
        # PEFT then changes the base when it loads the adapter.
        if "init_lora_weights" in unknown:
            plain = "`save_pretrained(…, path_initial_model_for_weight_conversion=…)` saves a plain one, and "
        raise CheckpointError(
            f"{path} has {features}, which is not known here. In PEFT, {plain}`merge_and_unload` makes a "
            "whole model of it, which can be read."
        )
    rank, alpha = settings["r"], float(settings["lora_alpha"])
    options = {"dropout": settings.get("lora_dropout", 0.0), "dora": bool(settings.get("use_dora"))}
    pattern = "|".join(map(re.escape, sorted(parts)))
    lora = Lora(pattern, rank, alpha, rslora=bool(settings.get("use_rslora")), **options)

    def scale(module: str) -> float:
        r = rank_of(settings, module)
        return _pattern_value(settings.get("alpha_pattern") or {}, module, alpha) / (
            r**0.5 if lora.rslora else r
        )

    factors: dict[str, Any] = {}
    for name, part in parts.items():
        module = module_of(name, names)
        if "{}" in module:
            scales = [scale(module.replace("{}", str(layer))) for layer in range(part["lora_b"].shape[0])]
            factors[name] = np.reshape(scales, (-1, 1, 1)) / lora.scale
        else:
            factors[name] = scale(module) / lora.scale
    return lora, factors


def rank_of(settings: Mapping[str, Any], module: str) -> int:
    """Return the rank of a module's adapter, from the content of an `adapter_config.json`."""
    return int(_pattern_value(settings.get("rank_pattern") or {}, module, settings["r"]))


def _pattern_value(values: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first key that matches the end of a module's name."""
    return next((x for key, x in values.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def on_all_layers(
    source: Source, settings: Mapping[str, Any], path: Path, names: Map, num_layers: Mapping[str, int]
) -> Source:
    """Return the arrays of an adapter, with PEFT's names, for all layers and with one rank."""
    arrays, wrong = {name: np.asarray(x) for name, x in source.arrays().items()}, []
    layers_named = settings.get("layers_to_transform")
    layers_named = [layers_named] if isinstance(layers_named, int) else layers_named
    for module, ours in modules_of(names).items():
        numbers = range(num_layers[ours] if "{}" in module else 1)
        layers = [module.replace("{}", str(number)) for number in numbers]
        a_names, b_names = (
            [f"{PREFIX}{layer}.{part}.weight" for layer in layers] for part in ("lora_A", "lora_B")
        )
        for number, layer, a, b in zip(numbers, layers, a_names, b_names, strict=True):
            has_a, has_b, rank = a in arrays, b in arrays, rank_of(settings, layer)
            if has_a and "{}" in module and layers_named is not None and number not in layers_named:
                wrong.append(f"{a} is of layer {number}, but layers_to_transform is {layers_named}")
            elif has_a != has_b:
                wrong.append(f"{b if has_a else a} is missing")
            elif has_a and arrays[a].shape[:1] != (rank,):
                wrong.append(f"{a} has shape {arrays[a].shape}, but its rank is {rank}")
            elif not has_a and any(name in arrays for name in a_names):
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
    if (
        settings.get("layers_to_transform") is not None
        or settings.get("exclude_modules")
        or targets == "all-linear"
    ):
        return False
    if isinstance(targets, str):
        return bool(re.fullmatch(targets, module))
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _padded_to_one_rank(
    arrays: Mapping[str, np.ndarray], names: list[str], dim: int
) -> dict[str, np.ndarray]:
    """Return matrices with zeros where one is missing or has a lower rank; none if all are missing."""
    matrices = [arrays[name] for name in names if name in arrays]
    # An error about the shapes of the model follows later.
    if not matrices or any(x.ndim != 2 for x in matrices):
        return {}
    rank, empty = max(x.shape[dim] for x in matrices), np.take(matrices[0], [], dim)
    return {
        name: np.pad(x, [(0, rank - x.shape[dim] if axis == dim else 0) for axis in (0, 1)])
        for name, x in ((name, arrays.get(name, empty)) for name in names)
    }
