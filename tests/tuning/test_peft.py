"""Held to what PEFT and PyTorch made of the same files: see golden/make.py."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.arrays import cast
from meshwright.formats import open_source
from meshwright.models import decoder, gpt2, hugging_face, t5
from meshwright.tuning import export_adapter, merged_source, read_adapter

GOLDEN = Path(__file__).parent / "golden"
MODELS = Path(__file__).parents[1] / "models" / "golden"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name[0] != "_")
ALIKE = [name for name in NAMES if name != "qwen3"]  # whose scales differ between layers


def base_of(name):
    return cast(hugging_face.open_model(MODELS / name), [(".*", "float32")])


def arrays(path):
    return {name: np.asarray(x) for name, x in open_source(path).arrays().items()}


def logits_of(name, params):
    cfg, given = hugging_face.config(MODELS / name), arrays(MODELS / name / "expected.safetensors")
    if isinstance(cfg, t5.Config):
        return jax.jit(functools.partial(t5.logits, cfg))(
            params, given["input_ids"], given["decoder_input_ids"]
        )
    model = gpt2 if isinstance(cfg, gpt2.Config) else decoder
    return jax.jit(functools.partial(model.logits, cfg))(params, given["input_ids"])


def assert_logits(name, params):
    wanted = arrays(GOLDEN / name / "expected.safetensors")["logits"]
    np.testing.assert_allclose(logits_of(name, params), wanted, rtol=1e-4, atol=2e-5)


def some(names):
    """The others are slow: each compiles a model."""
    return [
        pytest.param(x, marks=() if x in ("llama", "llama3", "gpt2") else pytest.mark.slow) for x in names
    ]


@pytest.mark.parametrize("name", some(NAMES))
def test_logits_with_an_adapter_of_peft_are_those_of_pytorch(name):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    base = mw.arrays.load(base_of(name))
    assert_logits(name, lora.effective({"base": base, "adapter": adapter}))


@pytest.mark.parametrize("name", some(["llama", "gemma", "gpt2"]))
def test_logits_of_merged_weights_are_those_of_the_adapter(name):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    assert_logits(name, mw.arrays.load(merged_source(base_of(name), adapter, lora)))
    assert_logits(name, lora.merged({"base": mw.arrays.load(base_of(name)), "adapter": adapter}))


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_written_is_what_peft_wrote(name, tmp_path):
    lora, adapter = read_adapter(GOLDEN / name, MODELS / name)
    export_adapter(adapter, tmp_path, lora, MODELS / name)
    theirs, ours = (arrays(place / "adapter_model.safetensors") for place in (GOLDEN / name, tmp_path))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)
    theirs, ours = (
        json.loads((place / "adapter_config.json").read_text()) for place in (GOLDEN / name, tmp_path)
    )
    same = ("r", "lora_alpha", "use_dora", "use_rslora", "peft_type", "task_type", "bias", "rank_pattern")
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
