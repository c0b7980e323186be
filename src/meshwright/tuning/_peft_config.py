"""The `adapter_config.json` of PEFT: written from the description of an adapter, and read.

Source: peft 0.21, `tuners/lora/config.py`; how patterns are matched, `utils/other.py::get_pattern_key`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import CheckpointError, UsageError
from meshwright.models import Map, gpt2, t5
from meshwright.tuning._lora import Lora
from meshwright.tuning._peft_names import Parts, module_of

_COMPUTED: dict[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "modules_to_save": (None, []),
    "lora_bias": (False, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "layer_replication": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "kasa_config": (None,),
    "arrow_config": (None,),
    "monteclora_config": (None,),
    "velora_config": (None,),
}
"""Settings that change what an adapter computes or stores, with the values that are known here."""


def settings_of(lora: Lora, base: str, parts: Parts, names: Map, cfg: Any) -> dict[str, Any]:
    """Return the content of an `adapter_config.json`.

    Args:
      lora: The description of the adapter.
      base: The name or path of the base model.
      parts: The arrays of the adapter, as they are written.
      names: The names of the model.
      cfg: The config of the model.

    Raises:
      UsageError: `base` is empty.
    """
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
    found = []
    for module in modules:
        end = module.rpartition(".")[2]
        layers = range(num_layers[module]) if "{}" in module else [0]
        found += [end] if end not in others else [module.replace("{}", str(layer)) for layer in layers]
    return sorted(set(found))


def lora_of(said: Mapping[str, Any], path: Path, parts: Parts, names: Map) -> tuple[Lora, dict[str, Any]]:
    """Return the description of an adapter, and the factor of each `lora_b` that gives it the one scale.

    Args:
      said: The content of the `adapter_config.json`.
      path: Its path, for errors.
      parts: The arrays of the adapter.
      names: The names of the model.

    Raises:
      CheckpointError: It has a feature that is not known here.
    """
    if said.get("peft_type") != "LORA":
        raise CheckpointError(f"{path} is of a {said.get('peft_type')!r} adapter; only LORA is known here.")
    refused = [
        f"{key}={said[key]!r}" for key, known in _COMPUTED.items() if key in said and said[key] not in known
    ]
    if refused:
        raise CheckpointError(f"{path} has {', '.join(refused)}, which is not known here.")
    rank, alpha = said["r"], float(said["lora_alpha"])
    given = {"dropout": said.get("lora_dropout", 0.0), "dora": bool(said.get("use_dora"))}
    pattern = "|".join(map(re.escape, sorted(parts)))
    lora = Lora(pattern, rank, alpha, rslora=bool(said.get("use_rslora")), **given)

    def scale(module: str) -> float:
        r = _of_pattern(said.get("rank_pattern") or {}, module, rank)
        return _of_pattern(said.get("alpha_pattern") or {}, module, alpha) / (r**0.5 if lora.rslora else r)

    factors: dict[str, Any] = {}
    for name, part in parts.items():
        module = module_of(name, names)
        if "{}" in module:
            of_layers = [scale(module.replace("{}", str(layer))) for layer in range(part["lora_b"].shape[0])]
            factors[name] = np.reshape(of_layers, (-1, 1, 1)) / lora.scale
        else:
            factors[name] = scale(module) / lora.scale
    return lora, factors


def _of_pattern(values: Mapping[str, float], module: str, default: float) -> float:
    """Return the value of the first key that matches the end of a module's name."""
    return next((x for key, x in values.items() if re.match(rf"(.*\.)?({key})$", module)), default)
