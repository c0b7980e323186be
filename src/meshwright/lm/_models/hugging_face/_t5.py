"""Configs and maps of T5, T5 1.1 and UMT5.

Source: `transformers`, `models/t5` and `models/umt5`.
"""

from collections.abc import Mapping
from typing import Any

from meshwright.errors import CheckpointError
from meshwright.lm._models._map import Map, Row, Transpose
from meshwright.lm._models.t5 import Config

SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets")
"""The sizes that every `config.json` must have."""
MODEL_TYPES = ("t5", "umt5")
_GATED = {"relu": False, "gated-gelu": True}
_UMT5 = "umt5"
ALIKE = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}
"""Pairs of keys that mean the same."""
_READ_KEYS = {
    *(
        *SIZES,
        "num_decoder_layers",
        "feed_forward_proj",
        "dense_act_fn",
        "is_gated_act",
        "layer_norm_epsilon",
    ),
    *("scale_decoder_outputs", "tie_word_embeddings", "relative_attention_max_distance"),
    *("is_encoder_decoder", "n_positions", "scalable_attention"),
}
KEYS = dict.fromkeys(MODEL_TYPES, _READ_KEYS)
"""The keys of a `config.json` that are known, by `model_type`."""


def config(settings: Mapping[str, Any]) -> Config:
    """Return the config in a `config.json`."""
    is_umt5 = settings.get("model_type") == _UMT5
    kind = settings.get("feed_forward_proj", "gated-gelu" if is_umt5 else "relu")
    if kind not in _GATED:
        raise CheckpointError(
            f"the T5 here does not support feed_forward_proj {kind!r}; it has {', '.join(_GATED)}."
        )
    parts = {"dense_act_fn": "gelu_new" if _GATED[kind] else "relu", "is_gated_act": _GATED[kind]}
    if other := [
        f"{name}={settings[name]!r}" for name, x in parts.items() if settings.get(name) not in (None, x)
    ]:
        raise CheckpointError(
            f"the T5 here does not support {', '.join(other)} beside feed_forward_proj {kind!r}."
        )
    # Version 5 writes tie_word_embeddings=true for all models, and has a new key with the old meaning.
    tied = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return Config(
        vocabulary=settings["vocab_size"],
        model=settings["d_model"],
        layers=settings["num_layers"],
        decoder_layers=settings.get("num_decoder_layers") or settings["num_layers"],
        heads=settings["num_heads"],
        head=settings["d_kv"],
        feed_forward=settings["d_ff"],
        gated=_GATED[kind],
        tied=tied,
        buckets=settings["relative_attention_num_buckets"],
        max_distance=settings.get("relative_attention_max_distance", 128),
        shared_bias=not is_umt5,
        norm_epsilon=settings.get("layer_norm_epsilon", 1e-6),
    )


def config_json(cfg: Config) -> dict[str, Any]:
    """Return the content of a `config.json` for the model, as `transformers` reads it."""
    kinds = {gated: kind for kind, gated in _GATED.items()}
    return {
        "architectures": [
            "T5ForConditionalGeneration" if cfg.shared_bias else "UMT5ForConditionalGeneration"
        ],
        "d_ff": cfg.feed_forward,
        "d_kv": cfg.head,
        "d_model": cfg.model,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
        "feed_forward_proj": kinds[cfg.gated],
        "is_encoder_decoder": True,
        "layer_norm_epsilon": cfg.norm_epsilon,
        "model_type": "t5" if cfg.shared_bias else _UMT5,
        "num_decoder_layers": cfg.decoder_layers,
        "num_heads": cfg.heads,
        "num_layers": cfg.layers,
        "pad_token_id": 0,
        "relative_attention_max_distance": cfg.max_distance,
        "relative_attention_num_buckets": cfg.buckets,
        "tie_word_embeddings": cfg.tied,
        "vocab_size": cfg.vocabulary,
    }


def parameter_map(cfg: Config) -> Map:
    """Return the map between the parameters in `transformers` and here."""
    rows = [Row("embedding", "shared.weight"), *_stack(cfg, "encoder"), *_stack(cfg, "decoder")]
    ignore = r"(en|de)coder\.embed_tokens\.weight"
    # Old files hold a bias of the cross attention that no model uses.
    ignore += r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    if cfg.tied:
        return Map(tuple(rows), ignore=rf"{ignore}|lm_head\.weight")
    return Map((*rows, Row("head", "lm_head.weight", (Transpose(),))), ignore=ignore)


def _stack(cfg: Config, stack: str) -> list[Row]:
    """Return the rows of the encoder, whose layers have two parts, or of the decoder, with three."""
    last = 2 if stack == "decoder" else 1
    bias, ours = "layer.0.SelfAttention.relative_attention_bias.weight", f"{stack}/layers"
    if cfg.shared_bias:
        rows = [Row(f"{stack}/position_bias", f"{stack}.block.0.{bias}")]
    else:
        rows = [Row(f"{ours}/position_bias", stack + ".block.{}." + bias)]
    rows.append(Row(f"{stack}/norm", f"{stack}.final_layer_norm.weight"))
    norms = {0: "attention_norm", 1: "cross_attention_norm", last: "feed_forward_norm"}
    weights = {f"0.SelfAttention.{name}": name for name in "qkvo"}
    if stack == "decoder":
        weights |= {f"1.EncDecAttention.{name}": f"cross_{name}" for name in "qkvo"}
    inner = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if cfg.gated else {"wi": "up", "wo": "down"}
    weights |= {f"{last}.DenseReluDense.{theirs}": ours for theirs, ours in inner.items()}
    layer = stack + ".block.{}.layer"
    rows += [Row(f"{ours}/{name}", f"{layer}.{part}.layer_norm.weight") for part, name in norms.items()]
    return rows + [
        Row(f"{ours}/{our_name}", f"{layer}.{name}.weight", (Transpose(),))
        for name, our_name in weights.items()
    ]
