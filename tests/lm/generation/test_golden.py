"""Held to what `transformers` generates with the same files: see golden/make.py."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.checkpoints._arrays._source import cast
from meshwright.lm._generation._decoding import Decoding, narrowed
from meshwright.lm._models import decoder, gpt2, hugging_face, t5
from meshwright.lm._models._with_cache import with_cache
from pairs import pairs

HERE = Path(__file__).parent
MODELS = HERE.parent / "lm/models/golden"
DECODERS = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"]
NAMES = [*DECODERS, "gpt2", "t5", "t5v1_1"]
NEW, END = 16, 2
HOW = {"greedy": {}, "beams": {"beams": 3}, "repeated": {"repetition_penalty": 1.5}}


@functools.cache
def restored(name):
    """The model with a cache, and its parameters in float32."""
    cfg = hugging_face.config(MODELS / name)
    init = {decoder.Config: decoder.init, gpt2.Config: gpt2.init, t5.Config: t5.init}[type(cfg)]
    source = cast(hugging_face.open_model(MODELS / name), [(".*", "float32")])
    target = jax.eval_shape(functools.partial(init, cfg), jax.random.key(0))
    return with_cache(cfg), mw.restore(source, target)


def expected(name):
    return json.loads((HERE / f"golden/{name}.json").read_text())


def cases():
    """All families and ways; CI tries each way with another kind of model."""
    slow = [("gemma2", "greedy"), ("t5v1_1", "beams"), ("gpt2", "repeated")]
    return pairs(NAMES, [*HOW], slow)


@pytest.mark.parametrize(("name", "how"), cases())
def test_tokens_are_those_of_transformers(name, how):
    model, params = restored(name)
    golden, decoding = expected(name), Decoding(max_new_tokens=NEW, stop=(END,), **HOW[how])
    prompts = golden["prompts"][: len(golden[how])]
    found = mw.lm.generate(model, params, prompts, decoding, length=32 if name == "gpt2" else 64)
    assert [row.tolist() for row in found] == golden[how]


@pytest.mark.parametrize("bound", ["top_k=5", "top_p=0.8", "min_p=0.1"])
def test_what_a_bound_keeps_is_what_it_keeps_in_transformers(bound):
    golden = expected("kept")
    name, value = bound.split("=")
    decoding = Decoding(temperature=1.0, **{name: json.loads(value)})
    kept = np.isfinite(narrowed(decoding, np.array(golden["logits"], np.float32)))
    assert kept.tolist() == golden["kept"][bound]
