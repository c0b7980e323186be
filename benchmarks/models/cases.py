"""Models to measure sharding on: parameters, loss and batch of real sizes, and rules written by hand.

Two layers each. The rules are those of Shoeybi et al. (2019): columns in, rows out, heads kept together,
the vocabulary by rows; what does not divide by the number of shards is left whole.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import meshwright as mw
from meshwright.parallel._rules import Rule

from . import decoders, losses, trees

Tree = Any


class Case(NamedTuple):
    params: Tree
    """As structs."""
    loss: Callable[[Tree, Tree], jax.Array]
    batch: Tree
    """As structs."""
    rules: tuple[Rule, ...]
    """Written by hand."""


def where(number: int, pattern: str, *spec: str | None) -> Rule:
    """As `mw.parallel.match`, where the tensor axis divides `number`, of heads or rows; elsewhere whole."""
    split, whole = mw.parallel.match(pattern, *spec), mw.parallel.match(pattern)
    return lambda name, x, mesh: (whole if number % mesh.shape["tensor"] else split)(name, x, mesh)


def columns(layers: str, pieces: int = 0) -> tuple[Rule, Rule]:
    """Split the outputs of `layers`, of `pieces` heads or any number of features, and their biases."""
    return where(pieces, f"({layers})/kernel", None, "tensor"), where(pieces, f"({layers})/bias", "tensor")


def rows(layers: str, pieces: int = 0) -> tuple[Rule]:
    """Split the inputs of `layers`."""
    return (where(pieces, f"({layers})/kernel", "tensor"),)


def table(name: str, num_rows: int) -> tuple[Rule]:
    return (where(num_rows, f"{name}/embedding", "tensor"),)


def ints(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


TOKENS = {"tokens": ints(16, 1024)}


def llama() -> Case:
    """LLaMA 3 8B: 32 heads, 8 of keys and values."""
    rules = (
        *table("embed_tokens", 128256), *columns("lm_head", 128256), *columns("q_proj", 32),
        *columns("k_proj|v_proj", 8), *rows("o_proj", 32), *columns("gate_proj|up_proj"), *rows("down_proj"),
    )  # fmt: skip
    params = trees.llama(D=4096, F=14336, V=128256, kv=1024)
    return Case(params, functools.partial(losses.llama, head_size=128), TOKENS, rules)


def gemma() -> Case:
    """Gemma 2B: 8 heads, one of keys and values."""
    rules = (
        *table("embed_tokens", 256000), *columns("q_proj", 8), *rows("o_proj", 8),
        *columns("gate_proj|up_proj"), *rows("down_proj"),
    )  # fmt: skip
    return Case(trees.gemma(), functools.partial(losses.llama, head_size=256), TOKENS, rules)


def gpt2() -> Case:
    """GPT-2 small: queries, keys and values in one matrix, 12 heads."""
    rules = (
        *table("wte", 50257), *columns("attn/c_attn", 12), *rows("attn/c_proj", 12),
        *columns("c_fc"), *rows("mlp/c_proj"),
    )  # fmt: skip
    return Case(trees.gpt2(), functools.partial(losses.gpt2, head_size=64), TOKENS, rules)


def bert() -> Case:
    """BERT base: 12 heads."""
    rules = (
        *table("word_embeddings", 30522), *columns("query|key|value", 12),
        *rows("attention/output/dense", 12), *columns("intermediate/dense"), *rows(r"layer/\d/output/dense"),
        where(30522, "predictions/bias", "tensor"),
    )  # fmt: skip
    batch = {"tokens": ints(16, 512), "types": ints(16, 512), "labels": ints(16, 512), "follows": ints(16)}
    return Case(trees.bert(), functools.partial(losses.bert, head_size=64), batch, rules)


def t5() -> Case:
    """T5 1.1 base: 12 heads."""
    rules = (
        *table("shared", 32128), *columns("lm_head", 32128), *columns("q|k|v", 12), *rows("o", 12),
        *columns("wi_0|wi_1"), *rows("wo"),
        where(12, "relative_attention_bias/embedding", None, "tensor"),
    )  # fmt: skip
    batch = {"tokens": ints(16, 512), "labels": ints(16, 512)}
    return Case(trees.t5_v1_1(D=768, F=2048, heads=12), losses.t5, batch, rules)


def vit() -> Case:
    """ViT base: 12 heads."""
    rules = (
        *columns("query|key|value", 12), *rows("attention/output/dense", 12),
        *columns("intermediate/dense"), *rows(r"layer/\d/output/dense"), *columns("classifier"),
    )  # fmt: skip
    batch = {"image": floats(64, 224, 224, 3), "labels": ints(64)}
    return Case(trees.vit(), functools.partial(losses.vit, head_size=64), batch, rules)


def whisper() -> Case:
    """Whisper small: 12 heads."""
    rules = (
        *table("embed_tokens", 51865), *columns("q_proj|k_proj|v_proj", 12), *rows("out_proj", 12),
        *columns("fc1"), *rows("fc2"),
    )  # fmt: skip
    batch = {"frames": floats(16, 3000, 80), "labels": ints(16, 448)}
    return Case(trees.whisper(), functools.partial(losses.whisper, head_size=64), batch, rules)


def mixture() -> Case:
    """Mixtral 8x7B: 32 heads, 8 of keys and values, 8 experts."""
    rules = (
        *table("embed_tokens", 32000), *columns("lm_head", 32000), *columns("q_proj", 32),
        *columns("k_proj|v_proj", 8), *rows("o_proj", 32),
        mw.parallel.match("wi_0|wi_1", None, None, "tensor"), mw.parallel.match("moe/wo", None, "tensor"),
    )  # fmt: skip
    return Case(trees.mixture(), functools.partial(losses.mixture, head_size=128), TOKENS, rules)


def mnist_cnn() -> Case:
    rules = (
        mw.parallel.match("Conv_0/kernel", None, None, None, "tensor"),
    mw.parallel.match("Conv_0/bias", "tensor"),
        mw.parallel.match("Conv_1/kernel", None, None, "tensor"), *columns("Dense_0"), *rows("Dense_1"),
    )  # fmt: skip
    batch = {"image": floats(512, 28, 28, 1), "labels": ints(512)}
    return Case(trees.mnist_cnn(), losses.mnist_cnn, batch, rules)


def lstm() -> Case:
    """A language model of two LSTM layers: each step needs all of the state before, so these stay whole."""
    rules = (*table("embed", 32768), *columns("head", 32768))
    return Case(decoders.lstm(), losses.lstm, {"tokens": ints(16, 129)}, rules)


CASES = {
    make.__name__: make for make in (llama, gemma, gpt2, bert, t5, vit, whisper, mixture, mnist_cnn, lstm)
}
