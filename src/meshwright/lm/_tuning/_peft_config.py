"""The `adapter_config.json` of PEFT: written from the description of an adapter, and read.

Source: peft 0.21, `tuners/lora/config.py`; how patterns are matched, `utils/other.py::get_pattern_key`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import gpt2, t5
from meshwright.lm._models._map import Map
from meshwright.lm._tuning._lora import Lora
from meshwright.lm._tuning._peft_names import Parts, module_of

_READ_KEYS = (
    *("peft_type", "r", "lora_alpha", "lora_dropout", "use_dora", "use_rslora", "rank_pattern"),
    *("alpha_pattern", "target_modules", "layers_to_transform", "exclude_modules"),
    # Of where an adapter is from, which arrays it has, and how they began:
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "task_type"),
    *("fan_in_fan_out", "layers_pattern", "ensure_weight_tying", "megatron_core", "qalora_group_size"),
    *("corda_config", "eva_config", "loftq_config", "lora_ga_config"),
)
"""The keys that are read, and those that change nothing of what an adapter computes."""
_HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "mica"),
}
"""The values of keys that change nothing. Any other key is of a feature that is not known here, and may be
off only: null, false, 0 or empty."""


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
        "fan_in_fan_out": isinstance(cfg, gpt2.Config),  # GPT-2's Conv1D
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
        raise CheckpointError(f"{path} is of a {settings.get('peft_type')!r} adapter; only LORA is known here.")
    unknown = {
        key: x
        for key, x in settings.items()
        if key not in _READ_KEYS and (x not in _HARMLESS_VALUES[key] if key in _HARMLESS_VALUES else x)
    }
    if unknown:
        features, plain = ", ".join(f"{key}={x!r}" for key, x in unknown.items()), ""
        if "init_lora_weights" in unknown:  # PEFT then changes the base when it loads the adapter
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
        return _pattern_value(settings.get("alpha_pattern") or {}, module, alpha) / (r**0.5 if lora.rslora else r)

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
