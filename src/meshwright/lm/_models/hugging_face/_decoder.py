"""Configs and maps of LLaMA, Mistral, Mixtral, Qwen and Gemma.

Source: `transformers`, `modeling_rope_utils.py` and `models/{llama,mistral,mixtral,qwen2,qwen3,qwen3_moe,
gemma,gemma2,gemma3}`. Its versions 4 and 5 store the settings of rotary positions under different keys.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from meshwright.errors import CheckpointError
from meshwright.lm._models._map import Map, Row, Transpose
from meshwright.lm._models.decoder import Config, Rope

T = TypeVar("T")
SLIDING, FULL = "sliding_attention", "full_attention"

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
"""The sizes that every `config.json` must have."""
_LLAMA = {"rope_theta": 10_000.0, "tie_word_embeddings": False}
_QWEN = {**_LLAMA, "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA = {"rope_theta": 10_000.0, "tie_word_embeddings": True, "num_key_value_heads": 16, "head_dim": 256}
_GEMMA2 = {**_GEMMA, "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096}
# The defaults of keys that a file lacks, by `model_type`. A key with the value null is not missing.
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {
        **_LLAMA,
        "rope_theta": 1e6,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_moe": {
        **_QWEN,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA2, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**_GEMMA2, "rope_theta": 1e6, "rope_local_base_freq": 10_000.0},
}
MODEL_TYPES = tuple(_LEFT_OUT)
_MIXTURES = ("mixtral", "qwen3_moe")
_GEMMAS = ("gemma", "gemma2", "gemma3_text")
_OLD_GELUS = ("gelu", "gelu_pytorch_tanh")
_OF_ALL = (
    *(
        *SIZES,
        "num_key_value_heads",
        "head_dim",
        "hidden_act",
        "rms_norm_eps",
        "rope_scaling",
        "rope_parameters",
    ),
    *("is_decoder", "partial_rotary_factor"),
    # `transformers` reads these in some families, and passes over them in the others.
    *("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"),
)
_OF_MIXTURES = ("router_aux_loss_coef", "num_experts", "num_local_experts")
_MORE = {
    "mixtral": _OF_MIXTURES,
    "qwen3_moe": (*_OF_MIXTURES, "decoder_sparse_step"),
    "gemma": ("hidden_activation",),
    "gemma2": ("hidden_activation", "sliding_window_size"),
    "gemma3_text": (
        # Not attn_logit_softcapping, which `transformers` passes over
        *("hidden_activation", "final_logit_softcapping"),
        *("sliding_window_pattern", "_sliding_window_pattern"),
    ),
}
KEYS = {kind: {*_OF_ALL, *left_out, *_MORE.get(kind, ())} for kind, left_out in _LEFT_OUT.items()}
"""The keys of a `config.json` that are known, by `model_type`."""
ALIKE = {
    "num_experts": "num_local_experts",
    "sliding_window_size": "sliding_window",
    "rope_scaling.type": "rope_scaling.rope_type",
    "rope_parameters.type": "rope_parameters.rope_type",
    "rope_parameters.rope_type": "rope_scaling.type",
    "rope_scaling.rope_type": "rope_parameters.rope_type",
    "rope_scaling.factor": "rope_parameters.factor",
    "rope_theta": "rope_parameters.rope_theta",
    "rope_parameters.full_attention.rope_theta": "rope_theta",
    "rope_parameters.sliding_attention.rope_theta": "rope_local_base_freq",
}
"""Pairs of keys that mean the same."""


def config(settings: Mapping[str, Any]) -> Config:
    """Return the config in a `config.json`."""
    settings = {**_LEFT_OUT[settings["model_type"]], **settings}
    _check(settings)
    gemma = settings["model_type"] in _GEMMAS
    return Config(
        vocabulary=settings["vocab_size"],
        model=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        key_heads=settings.get("num_key_value_heads"),
        head=settings.get("head_dim"),
        feed_forward=settings[
            "moe_intermediate_size" if settings["model_type"] == "qwen3_moe" else "intermediate_size"
        ],
        activation="gelu" if gemma else "silu",
        norm_epsilon=settings.get("rms_norm_eps", 1e-6),
        norm_offset=1.0 if gemma else 0.0,
        post_norms=settings["model_type"] in _GEMMAS[1:],
        ropes=_ropes(settings),
        windows=_windows(settings),
        tied=settings["tie_word_embeddings"],
        query_bias=settings["model_type"] == "qwen2",
        query_norm=settings["model_type"] in ("qwen3", "qwen3_moe", "gemma3_text"),
        query_scale=settings["query_pre_attn_scalar"] ** -0.5
        if settings.get("query_pre_attn_scalar")
        else None,
        embedding_scale=settings["hidden_size"] ** 0.5 if gemma else 1.0,
        attention_cap=settings.get("attn_logit_softcapping"),
        logit_cap=settings.get("final_logit_softcapping"),
        **_experts(settings),
    )


def _experts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that say what its experts are; none without experts."""
    if settings["model_type"] not in _MIXTURES:
        return {}
    chosen = settings["num_experts_per_tok"]
    return {
        "experts": settings.get("num_local_experts")
        or settings.get("num_experts")
        # `transformers` 5 writes `num_local_experts`, and 4 `num_experts`.
        or 128,
        "experts_per_token": chosen,
        "normalize_experts": settings.get("norm_topk_prob", True),
        # There an even load costs as much as there are experts of a token, and here 1.
        "balance_factor": settings.get("router_aux_loss_coef", 0.001) * chosen,
    }


def parameter_map(cfg: Config) -> Map:
    """Return the map between the parameters in `transformers` and here."""
    layer, rows = (
        "model.layers.{}",
        [Row("embedding", "model.embed_tokens.weight"), Row("norm", "model.norm.weight")],
    )
    matrices = {f"self_attn.{name}_proj": name for name in "qkvo"}
    if cfg.experts is None:
        matrices |= {f"mlp.{x}_proj": x for x in ("gate", "up", "down")}
    else:
        rows += _rows_of_experts(cfg, cfg.experts)
    rows += [
        Row(f"layers/{ours}", f"{layer}.{theirs}.weight", (Transpose(),)) for theirs, ours in matrices.items()
    ]
    rows += [Row(f"layers/{ours}", f"{layer}.{theirs}.weight") for theirs, ours in _norms(cfg).items()]
    if cfg.query_bias:
        rows += [Row(f"layers/{name}_bias", f"{layer}.self_attn.{name}_proj.bias") for name in "qkv"]
    if not cfg.tied:
        rows.append(Row("head", "lm_head.weight", (Transpose(),)))
    ignore = r".*\.rotary_emb\.inv_freq" + (r"|lm_head\.weight" if cfg.tied else "")
    return Map(tuple(rows), ignore, prefix="model.")


def _rows_of_experts(cfg: Config, experts: int) -> list[Row]:
    """Return the rows of a router and its experts, whose names are Qwen's or Mixtral's."""
    is_qwen = cfg.query_norm
    layer = "model.layers.{}." + ("mlp" if is_qwen else "block_sparse_moe")
    names = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    names = names if is_qwen else {"gate": "w1", "up": "w3", "down": "w2"}
    expert = layer + ".experts.{}."
    return [
        Row("layers/router", f"{layer}.gate.weight", (Transpose(),)),
        *(
            Row(f"layers/experts/{ours}", f"{expert}{theirs}.weight", (Transpose(),), num_experts=experts)
            for ours, theirs in names.items()
        ),
    ]


def _norms(cfg: Config) -> dict[str, str]:
    """Return our name of each norm in a layer by theirs; `post_attention_layernorm` has two meanings."""
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


def _check(settings: Mapping[str, Any]) -> None:
    kind = settings["model_type"]
    if settings.get("decoder_sparse_step", 1) != 1:
        raise CheckpointError(f"the decoder does not support decoder_sparse_step of {kind}.")
    activations, activation = ("silu", "swish"), settings.get("hidden_act") or "silu"
    if kind in _GEMMAS:
        # Both old names of GELU mean the tanh approximation in Gemma.
        old = settings.get("hidden_act") in (
            None,
            *_OLD_GELUS,
        )
        activations = ("gelu_pytorch_tanh",)
        activation = settings.get("hidden_activation") or (activations[0] if old else settings["hidden_act"])
    if activation not in activations:
        raise CheckpointError(
            f"the decoder has no activation {activation!r} for {kind}; it has {activations[0]}."
        )


def _layer_types(settings: Mapping[str, Any]) -> list[str]:
    """Return the type of each layer, sliding or full attention; files of version 4 do not list them.

    Mixtures, LLaMA, Mistral and the first Gemma have layers of one type, whatever the file lists.
    """
    layers = settings["num_hidden_layers"]
    if settings["model_type"] in ("llama", "gemma", "mistral", "mixtral", "qwen3_moe"):
        return [FULL if settings["model_type"] in ("llama", "gemma") else SLIDING] * layers
    if settings.get("layer_types"):
        return _checked(settings["layer_types"], layers)
    if settings["model_type"] in ("gemma2", "gemma3_text"):
        period = 2 if settings["model_type"] == "gemma2" else settings.get("sliding_window_pattern", 6)
        return [FULL if (number + 1) % period == 0 else SLIDING for number in range(layers)]
    first = settings["max_window_layers"]
    return ([FULL] * first + [SLIDING] * layers)[:layers]


def _checked(layer_types: list[str], layers: int) -> list[str]:
    if unknown := [kind for kind in layer_types if kind not in (SLIDING, FULL)]:
        raise CheckpointError(f"layer_types has {unknown[0]!r}; the decoder knows {SLIDING} and {FULL}.")
    if len(layer_types) != layers:
        raise CheckpointError(f"layer_types has {len(layer_types)} entries for {layers} layers.")
    return layer_types


def _windows(settings: Mapping[str, Any]) -> tuple[int | None, ...]:
    unused = settings["model_type"] in ("qwen2", "qwen3", "qwen3_moe") and not settings.get(
        "use_sliding_window"
    )
    size = None if unused else settings.get("sliding_window")
    return _shortened([size if kind == SLIDING else None for kind in _layer_types(settings)])


def _ropes(settings: Mapping[str, Any]) -> tuple[Rope, ...]:
    ropes = {kind: _rope(_rope_of(settings, kind)) for kind in {*_layer_types(settings)}}
    return _shortened([ropes[kind] for kind in _layer_types(settings)])


def _rope_of(settings: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the settings of rotary positions for layers of a type."""
    local = settings["model_type"] == "gemma3_text" and kind == SLIDING
    scaling = {} if local else _object(settings, "rope_scaling")
    parameters = _object(settings, "rope_parameters")
    return {
        "rope_theta": settings["rope_local_base_freq" if local else "rope_theta"],
        "partial_rotary_factor": settings.get("partial_rotary_factor", 1),
        **(parameters.get(kind) or parameters or scaling),
    }


def _object(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name) or {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{name} is {value!r}; it must be an object with a rope_type.")
    return value


def _rope(settings: Mapping[str, Any]) -> Rope:
    kind = settings.get("rope_type", settings.get("type", "default"))
    keys = (*_OF_ALL_ROPES, *_ROPES.get(kind, ()))
    if (
        kind not in _ROPES
        or settings.get("partial_rotary_factor", 1) != 1
        or any(settings[x] for x in settings.keys() - keys)
    ):
        raise CheckpointError(
            f"the decoder does not support these rotary positions: {dict(settings)}. Known types are "
            f"{', '.join(_ROPES)}."
        )
    numbers = {name: settings[name] for name in ("rope_theta", *_ROPES[kind])}
    if wrong := [
        f"{name} is {x!r}" for name, x in numbers.items() if not isinstance(x, int | float) or x <= 0
    ]:
        raise CheckpointError(f"{', '.join(wrong)}; rotary positions need positive numbers.")
    return Rope(*numbers.values())


_OF_ALL_ROPES = (
    *("rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings"),
)
# The keys that a type of rotary positions needs besides `rope_theta`, in the order of `Rope`'s fields.
_ROPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
}


def _shortened(pattern: list[T]) -> tuple[T, ...]:
    """Return the pattern, shortened to one entry if all are the same."""
    return tuple(pattern[:1]) if len(set(pattern)) == 1 else tuple(pattern)
