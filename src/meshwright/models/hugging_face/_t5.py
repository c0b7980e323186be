"""Configs and maps of T5 and T5 1.1.

Source: `transformers`, `models/t5`.
"""

from collections.abc import Mapping
from typing import Any

from meshwright.errors import CheckpointError
from meshwright.models._map import Map, Row, Transpose
from meshwright.models.t5 import Config

SIZES = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads", "relative_attention_num_buckets")
"""The sizes that every `config.json` must have."""
_GATED = {"relu": False, "gated-gelu": True}


def config(said: Mapping[str, Any]) -> Config:
    """Return the config in a `config.json`."""
    kind = said.get("feed_forward_proj", "relu")
    if kind not in _GATED:
        raise CheckpointError(
            f"the T5 here does not support feed_forward_proj {kind!r}; it has {', '.join(_GATED)}."
        )
    # Version 5 writes tie_word_embeddings=true for all models, and has a new key with the old meaning.
    tied = said.get("scale_decoder_outputs", said.get("tie_word_embeddings", True))
    return Config(
        vocabulary=said["vocab_size"],
        model=said["d_model"],
        layers=said["num_layers"],
        decoder_layers=said.get("num_decoder_layers") or said["num_layers"],
        heads=said["num_heads"],
        head=said["d_kv"],
        feed_forward=said["d_ff"],
        gated=_GATED[kind],
        tied=tied,
        buckets=said["relative_attention_num_buckets"],
        max_distance=said.get("relative_attention_max_distance", 128),
        norm_epsilon=said.get("layer_norm_epsilon", 1e-6),
    )


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
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rows = [Row(f"{stack}/position_bias", bias), Row(f"{stack}/norm", f"{stack}.final_layer_norm.weight")]
    norms = {0: "attention_norm", 1: "cross_attention_norm", last: "feed_forward_norm"}
    weights = {f"0.SelfAttention.{name}": name for name in "qkvo"}
    if stack == "decoder":
        weights |= {f"1.EncDecAttention.{name}": f"cross_{name}" for name in "qkvo"}
    inner = {"wi_0": "gate", "wi_1": "up", "wo": "down"} if cfg.gated else {"wi": "up", "wo": "down"}
    weights |= {f"{last}.DenseReluDense.{theirs}": ours for theirs, ours in inner.items()}
    layer, ours = stack + ".block.{}.layer", f"{stack}/layers"
    rows += [Row(f"{ours}/{name}", f"{layer}.{part}.layer_norm.weight") for part, name in norms.items()]
    return rows + [
        Row(f"{ours}/{to}", f"{layer}.{name}.weight", (Transpose(),)) for name, to in weights.items()
    ]
