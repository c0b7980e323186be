"""The config and the map of GPT-2.

Source: `transformers`, `models/gpt2`. Its `Conv1D` stores weights as we do, [in, out].
"""

from collections.abc import Mapping
from typing import Any

from meshwright.errors import CheckpointError
from meshwright.lm._models._map import Map, Row
from meshwright.lm._models.gpt2 import Config

SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
"""The sizes that every `config.json` must have."""
# The features of `gpt2` and of all released models, which may not be off.
_COMPUTED = ("scale_attn_weights", "tie_word_embeddings")
ALIKE = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
"""Pairs of keys that mean the same."""
KEYS = {
    "gpt2": {
        *(*SIZES, *_COMPUTED, "activation_function", "n_inner", "layer_norm_epsilon"),
        *("n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn", "is_decoder"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
        "summary_first_dropout",
    }
}
"""The keys of a `config.json` that are known."""


def config(settings: Mapping[str, Any]) -> Config:
    """Return the config in a `config.json`."""
    refused = [f"{name}={settings[name]}" for name in _COMPUTED if not settings.get(name, True)]
    activation = settings.get("activation_function", "gelu_new")
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        refused.append(f"activation_function={activation}")
    if refused:
        raise CheckpointError(f"the GPT-2 here does not support {', '.join(refused)}.")
    return Config(
        vocabulary=settings["vocab_size"],
        positions=settings["n_positions"],
        model=settings["n_embd"],
        layers=settings["n_layer"],
        heads=settings["n_head"],
        feed_forward=settings.get("n_inner") or 4 * settings["n_embd"],
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-5),
    )


def parameter_map(cfg: Config) -> Map:
    """Return the map between the parameters in `transformers` and here."""
    layer, norm = "transformer.h.{}", "transformer.ln_f"
    rows = [Row("embedding", "transformer.wte.weight"), Row("positions", "transformer.wpe.weight")]
    rows += [Row("norm", f"{norm}.weight"), Row("norm_bias", f"{norm}.bias")]
    for end, ours_end in (("weight", ""), ("bias", "_bias")):
        fused = tuple(f"layers/{name}{ours_end}" for name in "qkv")
        rows.append(Row(fused, f"{layer}.attn.c_attn.{end}", sizes=(cfg.model,) * 3))
        rows += [
            Row(f"layers/{ours}{ours_end}", f"{layer}.{theirs}.{end}") for theirs, ours in _ONE_TO_ONE.items()
        ]
    return Map(tuple(rows), ignore=r"lm_head\.weight|.*\.attn\.(masked_)?bias", prefix="transformer.")


_ONE_TO_ONE = {
    "ln_1": "attention_norm",
    "attn.c_proj": "o",
    "ln_2": "feed_forward_norm",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
