"""The architecture of GGUF that a config is, and its settings there.

Source: the keys of the package `gguf`, `constants.py`. The loaders of llama.cpp say which keys an
architecture has, and what it computes.
"""

from typing import Any

import numpy as np

from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2
from meshwright.lm._models._config import Rope, cycled

Config = decoder.Config | gpt2.Config

# The architecture, by whether queries have biases and norms.
_OTHERS = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
# The architecture, by whether layers have further norms and queries have norms.
_GEMMAS = {(False, False): "gemma", (True, False): "gemma2", (True, True): "gemma3"}
# The last layer of so many has no window.
_PERIODS = {"gemma2": 2, "gemma3": 6}
# The architectures and numbers of layers whose scores are scaled by model / heads, not by a head's size.
_BY_MODEL_SIZE = {("gemma2", 46), ("gemma3", 62)}


def architecture_of(cfg: Config) -> str:
    """Return the name of the architecture in GGUF."""
    if isinstance(cfg, gpt2.Config):
        return "gpt2"
    if not isinstance(cfg, decoder.Config):
        raise UsageError(
            f"GGUF files are written of decoders and GPT-2; found {type(cfg).__module__}.Config."
        )
    architecture = (
        _GEMMAS.get((cfg.post_norms, cfg.query_norm))
        if cfg.norm_offset
        else _OTHERS.get((cfg.query_bias, cfg.query_norm))
    )
    problems = (
        ["no family has these norms and biases"] if architecture is None else _problems(architecture, cfg)
    )
    if architecture is None or problems:
        raise UsageError(
            f"GGUF cannot hold this decoder{f' as {architecture}' if architecture else ''}:\n  "
            + "\n  ".join(problems)
        )
    return architecture


def _problems(kind: str, cfg: decoder.Config) -> list[str]:
    is_gemma = kind in _GEMMAS.values()
    size = cfg.model / cfg.heads if (kind, cfg.layers) in _BY_MODEL_SIZE else cfg.head_size
    expected = {
        "activation": "gelu" if is_gemma else "silu",
        "norm_offset": 1.0 if is_gemma else 0.0,
        "query_bias": kind == "qwen2",
        "post_norms": kind in ("gemma2", "gemma3"),
        "experts": None,
        "tied": is_gemma or cfg.tied,
    }
    problems = [
        f"{name} is {getattr(cfg, name)!r}; expected {x!r}."
        for name, x in expected.items()
        if getattr(cfg, name) != x
    ]
    scale = cfg.model**0.5 if is_gemma else 1.0
    rules = [
        (
            not np.isclose(cfg.embedding_scale, scale),
            f"embedding_scale is {cfg.embedding_scale}; expected {scale}.",
        ),
        (
            cfg.query_scale is not None and not np.isclose(cfg.query_scale, size**-0.5),
            f"query_scale is {cfg.query_scale}; expected {size**-0.5}.",
        ),
        (
            (cfg.attention_cap is None, cfg.logit_cap is None) != ((kind != "gemma2"),) * 2,
            f"attention_cap is {cfg.attention_cap} and logit_cap is {cfg.logit_cap}; "
            f"{'both are needed' if kind == 'gemma2' else 'neither is known'}.",
        ),
        (
            kind == "qwen2" and cfg.head_size * cfg.heads != cfg.model,
            f"heads of qwen2 must be model / heads = {cfg.model / cfg.heads:g} large; found {cfg.head_size}.",
        ),
        (not _has_windows(kind, cfg), f"windows is {cfg.windows}; {kind} has them in other layers."),
        (not _has_ropes(kind, cfg), f"ropes is {cfg.ropes}; {kind} has others."),
    ]
    return problems + [text for is_wrong, text in rules if is_wrong]


def _has_windows(kind: str, cfg: decoder.Config) -> bool:
    """Return whether layers have the architecture's windows; LLaMA and Qwen are bounded by their context."""
    sizes = {size for size in cycled(cfg.windows, cfg.layers) if size}
    if kind not in _PERIODS:
        return kind != "gemma" or not sizes
    has = [size is not None for size in cycled(cfg.windows, cfg.layers)]
    return len(sizes) == 1 and has == [_is_windowed(kind, layer) for layer in range(cfg.layers)]


def _is_windowed(kind: str, layer: int) -> bool:
    return kind in _PERIODS and (layer + 1) % _PERIODS[kind] != 0


def _has_ropes(kind: str, cfg: decoder.Config) -> bool:
    whole, windowed = _ropes(kind, cfg)
    if kind != "gemma3":
        return len(whole | windowed) == 1 and (kind == "llama" or not next(iter(whole | windowed)).length)
    return len(whole) <= 1 and len(windowed) == 1 and next(iter(windowed)).factor == 1


def _ropes(kind: str, cfg: decoder.Config) -> tuple[set[Rope], set[Rope]]:
    """Return the rotary positions of layers without a window and of those with one."""
    ropes: tuple[set[Rope], set[Rope]] = (set(), set())
    for layer, rope in enumerate(cycled(cfg.ropes, cfg.layers)):
        ropes[_is_windowed(kind, layer)].add(rope)
    return ropes


def add_config(package: Any, writer: Any, cfg: Config, kind: str, context_length: int) -> None:
    """Write the settings of a model."""
    writer.add_vocab_size(cfg.vocabulary)
    writer.add_context_length(context_length)
    writer.add_embedding_length(cfg.model)
    writer.add_block_count(cfg.layers)
    writer.add_feed_forward_length(cfg.feed_forward)
    writer.add_head_count(cfg.heads)
    if isinstance(cfg, gpt2.Config):
        writer.add_layer_norm_eps(cfg.norm_epsilon)
        return
    writer.add_head_count_kv(cfg.num_key_heads)
    writer.add_key_length(cfg.head_size)
    writer.add_value_length(cfg.head_size)
    writer.add_layer_norm_rms_eps(cfg.norm_epsilon)
    writer.add_rope_dimension_count(cfg.head_size)
    whole, windowed = _ropes(kind, cfg)
    rope = next(iter(whole or windowed))
    writer.add_rope_freq_base(rope.base)
    if kind in _PERIODS:
        writer.add_sliding_window(next(size for size in cfg.windows if size))
    if kind == "gemma3":
        writer.add_rope_freq_base_swa(next(iter(windowed)).base)
    if rope.factor != 1 and kind != "llama":
        writer.add_rope_scaling_type(package.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.factor)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(cfg.attention_cap)
        writer.add_final_logit_softcapping(cfg.logit_cap)


def rope_factors(cfg: decoder.Config) -> np.ndarray | None:
    """Return by what each rotary frequency of a LLaMA is divided, float32[H / 2]; None if none is."""
    rope = cfg.ropes[0]
    if rope.factor == 1:
        return None
    return Rope(rope.base).frequencies(cfg.head_size) / rope.frequencies(cfg.head_size)
