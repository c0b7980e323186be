"""LLaMA, Mistral, Qwen and Gemma.

Source: `transformers`, `models/{llama,mistral,qwen2,qwen3,gemma,gemma2,gemma3}` and `modeling_rope_utils.py`.
Files of its versions 4 and 5 differ in where they say how positions turn.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from meshwright.errors import CheckpointError
from meshwright.models._map import Map, Row, Transpose
from meshwright.models.decoder import Config, Rope

T = TypeVar("T")
SLIDING, FULL = "sliding_attention", "full_attention"

_GEMMAS = ("gemma", "gemma2", "gemma3_text")
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", *_GEMMAS)
_REFUSED = ("attention_bias", "mlp_bias", "use_bidirectional_attention")
"""What no released model of these families sets, and `decoder` does not compute."""


def config(said: Mapping[str, Any]) -> Config:
    """Return what a `config.json` says."""
    _check(said)
    heads = said["num_attention_heads"]
    gemma = said["model_type"] in _GEMMAS
    return Config(
        vocabulary=said["vocab_size"],
        model=said["hidden_size"],
        layers=said["num_hidden_layers"],
        heads=heads,
        key_heads=said.get("num_key_value_heads") or heads,
        head=said.get("head_dim") or said["hidden_size"] // heads,
        feed_forward=said["intermediate_size"],
        activation="gelu" if gemma else "silu",
        norm_epsilon=said.get("rms_norm_eps", 1e-6),
        norm_offset=1.0 if gemma else 0.0,
        post_norms=said["model_type"] in _GEMMAS[1:],
        ropes=_ropes(said),
        windows=_windows(said),
        tied=said.get("tie_word_embeddings", gemma),
        query_bias=said["model_type"] == "qwen2",
        query_norm=said["model_type"] in ("qwen3", "gemma3_text"),
        query_scale=said["query_pre_attn_scalar"] ** -0.5 if said.get("query_pre_attn_scalar") else None,
        embedding_scale=said["hidden_size"] ** 0.5 if gemma else 1.0,
        attention_cap=said.get("attn_logit_softcapping"),
        logit_cap=said.get("final_logit_softcapping"),
    )


def parameter_map(cfg: Config) -> Map:
    """Return the map between the parameters there and here."""
    layer, rows = (
        "model.layers.{}",
        [Row("embedding", "model.embed_tokens.weight"), Row("norm", "model.norm.weight")],
    )
    matrices = {f"self_attn.{name}_proj": name for name in "qkvo"} | {
        f"mlp.{x}_proj": x for x in ("gate", "up", "down")
    }
    rows += [
        Row(f"layers/{ours}", f"{layer}.{theirs}.weight", (Transpose(),)) for theirs, ours in matrices.items()
    ]
    rows += [Row(f"layers/{ours}", f"{layer}.{theirs}.weight") for theirs, ours in _norms(cfg).items()]
    if cfg.query_bias:
        rows += [Row(f"layers/{name}_bias", f"{layer}.self_attn.{name}_proj.bias") for name in "qkv"]
    if not cfg.tied:
        rows.append(Row("head", "lm_head.weight", (Transpose(),)))
    return Map(tuple(rows), ignore=r".*\.rotary_emb\.inv_freq" + (r"|lm_head\.weight" if cfg.tied else ""))


def _norms(cfg: Config) -> dict[str, str]:
    """Return our name of each norm of a layer by theirs, of which one means two things."""
    norms = {"input_layernorm": "attention_norm"}
    if cfg.post_norms:
        norms["post_attention_layernorm"] = "attention_post_norm"
        norms["pre_feedforward_layernorm"] = "feed_forward_norm"
        norms["post_feedforward_layernorm"] = "feed_forward_post_norm"
    else:
        norms["post_attention_layernorm"] = "feed_forward_norm"
    if cfg.query_norm:
        norms |= {f"self_attn.{name}_norm": f"{name}_norm" for name in "qk"}
    return norms


def _check(said: Mapping[str, Any]) -> None:
    kind = said["model_type"]
    refused = [name for name in _REFUSED if said.get(name)]
    if refused:
        raise CheckpointError(f"the decoder has nothing for {', '.join(refused)} of {kind}.")
    wanted = ("gelu_pytorch_tanh", "gelu") if kind in _GEMMAS else ("silu",)
    activation = said.get("hidden_activation") or said.get("hidden_act") or wanted[0]
    if activation not in wanted:
        raise CheckpointError(f"the decoder has no activation {activation!r} for {kind}; it has {wanted[0]}.")


def _layer_types(said: Mapping[str, Any]) -> list[str]:
    """Return which layers see a window only, as files of version 5 say and those of version 4 imply."""
    layers = said["num_hidden_layers"]
    if said.get("layer_types"):
        return said["layer_types"]
    if said["model_type"] in ("gemma2", "gemma3_text"):
        period = 2 if said["model_type"] == "gemma2" else said.get("sliding_window_pattern", 6)
        return [FULL if (number + 1) % period == 0 else SLIDING for number in range(layers)]
    if said["model_type"] in ("qwen2", "qwen3"):
        first = said.get("max_window_layers", layers) if said.get("use_sliding_window") else layers
        return [FULL] * first + [SLIDING] * (layers - first)
    return [SLIDING if said["model_type"] == "mistral" else FULL] * layers


def _windows(said: Mapping[str, Any]) -> tuple[int | None, ...]:
    size = said.get("sliding_window")
    return _shortened([size if kind == SLIDING else None for kind in _layer_types(said)])


def _ropes(said: Mapping[str, Any]) -> tuple[Rope, ...]:
    turned = {kind: _rope(_rope_of(said, kind)) for kind in {*_layer_types(said)}}
    return _shortened([turned[kind] for kind in _layer_types(said)])


def _rope_of(said: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return how positions turn in layers of a kind."""
    if "rope_parameters" in said:
        parameters = said["rope_parameters"] or {}
        return parameters.get(kind, parameters)
    if said["model_type"] == "gemma3_text" and kind == SLIDING:
        return {"rope_theta": said.get("rope_local_base_freq", 10_000.0)}
    base = 1e6 if said["model_type"] == "gemma3_text" else 10_000.0
    return {"rope_theta": said.get("rope_theta", base), **(said.get("rope_scaling") or {})}


def _rope(said: Mapping[str, Any]) -> Rope:
    kind = said.get("rope_type", said.get("type", "default"))
    base = said.get("rope_theta", 10_000.0)
    if said.get("partial_rotary_factor", 1) == 1:
        if kind == "default":
            return Rope(base)
        if kind == "linear":
            return Rope(base, said["factor"])
        if kind == "llama3":
            length = said["original_max_position_embeddings"]
            return Rope(base, said["factor"], length, said["low_freq_factor"], said["high_freq_factor"])
    raise CheckpointError(
        f"the decoder cannot turn positions so: {dict(said)}. It knows default, linear and llama3."
    )


def _shortened(pattern: list[T]) -> tuple[T, ...]:
    """Return one entry where all are the same."""
    return tuple(pattern[:1]) if len(set(pattern)) == 1 else tuple(pattern)
