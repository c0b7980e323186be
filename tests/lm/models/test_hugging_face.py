"""Held to what `transformers` and PyTorch made of the same files: see golden/make.py."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._source import as_source, cast
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, gpt2, hugging_face, t5
from meshwright.lm._models.decoder import Rope

GOLDEN = Path(__file__).parent / "golden"
DECODERS = [
    "llama",
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
]


def expected(name):
    arrays = open_source(GOLDEN / name / "expected.safetensors").arrays()
    return {name: np.asarray(array) for name, array in arrays.items()}


def restored(name, model, cfg):
    source = cast(hugging_face.open_model(GOLDEN / name), [(".*", "float32")])
    return mw.restore(source, jax.eval_shape(functools.partial(model.init, cfg), jax.random.key(0)))


def bits(arrays):
    return {name: (str(x.dtype), np.asarray(x).tobytes()) for name, x in arrays.items()}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.daily(5)
def test_logits_of_decoders_are_those_of_pytorch(name):
    cfg, golden = hugging_face.config(GOLDEN / name), expected(name)
    params = restored(name, decoder, cfg)
    logits = jax.jit(functools.partial(decoder.logits, cfg))(params, golden["input_ids"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


def test_logits_of_gpt2_are_those_of_pytorch():
    cfg, golden = hugging_face.config(GOLDEN / "gpt2"), expected("gpt2")
    logits = jax.jit(functools.partial(gpt2.logits, cfg))(restored("gpt2", gpt2, cfg), golden["input_ids"])
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["t5", "t5v1_1", "umt5"])
@pytest.mark.daily(1)
def test_logits_of_t5_are_those_of_pytorch(name):
    cfg, golden = hugging_face.config(GOLDEN / name), expected(name)
    logits = jax.jit(functools.partial(t5.logits, cfg))(
        restored(name, t5, cfg), golden["input_ids"], golden["decoder_input_ids"]
    )
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", [*DECODERS, "gpt2", "t5", "t5v1_1", "umt5"])
def test_what_is_exported_is_what_was_read(name, tmp_path):
    theirs = open_source(GOLDEN / name)
    names = hugging_face.parameter_map(hugging_face.config(GOLDEN / name))
    export_safetensors(names.to_theirs(names.to_ours(theirs)), tmp_path)
    assert bits(open_source(tmp_path).arrays()) == bits(theirs.arrays())


def test_a_tree_is_exported_as_a_checkpoint_of_it_is(mesh, tmp_path):
    cfg, layout = hugging_face.config(GOLDEN / "llama"), mw.Layout(mesh, decoder.RULES)
    target = mw.training.abstract_state(functools.partial(decoder.init, cfg), optax.sgd(1), layout).params
    source = cast(hugging_face.open_model(GOLDEN / "llama"), [(".*", "float32")])
    for number, params in enumerate((mw.restore(source, target), mw.checkpoints.load(source))):
        place = tmp_path / str(number)
        hugging_face.export_model(params, place, GOLDEN / "llama", dtype="bfloat16")
        assert bits(open_source(place).arrays()) == bits(open_source(GOLDEN / "llama").arrays())


@pytest.fixture
def model(tmp_path):
    """A directory of a model with a tokenizer, whose parameters are those of the golden LLaMA."""
    place = tmp_path / "model"
    place.mkdir()
    for file in (GOLDEN / "llama").glob("[cm]*"):
        (place / file.name).write_bytes(file.read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "notes.txt"):
        (place / name).write_text(f'{{"file": "{name}"}}')
    return place


def test_tokenizer_and_generation_config_come_along_and_nothing_else(model, tmp_path):
    params = mw.checkpoints.load(hugging_face.open_model(model))
    (tmp_path / "secret").write_text("secret")
    (model / "vocab.txt").symlink_to(tmp_path / "secret")
    written = hugging_face.export_model(params, tmp_path / "out", model)
    names = {"generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in written} == names | {"model.safetensors", "config.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in written}
    assert all((tmp_path / "out" / name).read_bytes() == (model / name).read_bytes() for name in names)


def test_a_link_beside_the_model_is_told_and_not_followed(model, tmp_path, caplog):
    (model / "vocab.txt").symlink_to("tokenizer.json")
    hugging_face.export_model(mw.checkpoints.load(hugging_face.open_model(model)), tmp_path / "out", model)
    assert "vocab.txt is not copied, as it is a link" in caplog.text


def test_another_tokenizer_in_the_directory_is_refused_before_anything_is_written(model, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "tokenizer.json").write_text("mine")
    params = mw.checkpoints.load(hugging_face.open_model(model))
    with pytest.raises(UsageError, match=r"out/tokenizer.json exists already, and differs"):
        hugging_face.export_model(params, out, model)
    assert [path.name for path in out.iterdir()] == ["tokenizer.json"]


def test_from_a_config_alone_nothing_else_is_copied(model, tmp_path):
    params = mw.checkpoints.load(hugging_face.open_model(model))
    written = hugging_face.export_model(params, tmp_path / "out", model / "config.json")
    assert [path.name for path in written] == ["model.safetensors", "config.json"]


def test_a_merged_tree_of_plain_arrays_is_exported(model, tmp_path):
    params = jax.tree.map(np.asarray, mw.checkpoints.load(hugging_face.open_model(model)))
    params["layers"]["q"] = params["layers"]["q"] + params["layers"]["q"]
    hugging_face.export_model(params, tmp_path / "out", model)
    found = hugging_face.open_model(tmp_path / "out").arrays()["layers/q"]
    np.testing.assert_array_equal(np.asarray(found), params["layers"]["q"])


def test_a_tree_that_is_not_the_models_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"params does not fit the target:(?s:.*)embedding: in"):
        hugging_face.export_model({"w": np.ones(2)}, tmp_path / "out", GOLDEN / "llama")
    with pytest.raises(UsageError, match="cannot export typed PRNG keys: rng"):
        hugging_face.export_model({"rng": jax.random.key(0)}, tmp_path / "out", GOLDEN / "llama")
    assert not (tmp_path / "out").exists()


def test_a_run_starts_from_it_on_a_mesh(mesh):
    cfg, layout = hugging_face.config(GOLDEN / "llama"), mw.Layout(mesh, decoder.RULES)
    target = mw.training.abstract_state(functools.partial(decoder.init, cfg), optax.sgd(1), layout)
    build = mw.engine.from_checkpoint(
        str(GOLDEN / "llama"),
        assign=[("params/(.*)", r"\1")],
        casts=[(".*", "float32")],
        open_with=hugging_face.open_model,
    )
    found = build(target)["params/layers/gate"]
    theirs = open_source(GOLDEN / "llama").arrays()["model.layers.1.mlp.gate_proj.weight"]
    assert found.sharding.spec == jax.P(None, "fsdp", "tensor")
    np.testing.assert_array_equal(found[1], np.asarray(theirs).astype(np.float32).T)


def test_a_tied_head_that_is_there_nevertheless_is_left_out():
    arrays = dict(open_source(GOLDEN / "qwen2").arrays())
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    names = hugging_face.parameter_map(hugging_face.config(GOLDEN / "qwen2"))
    assert "lm_head.weight" not in names.to_ours(as_source(arrays, "tied")).arrays()


LLAMA_31_8B = {  # as it is published, but for fields that say nothing of the model
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
GEMMA_3_1B = {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


def test_files_of_version_four_say_how_positions_turn_elsewhere():
    assert hugging_face.config(LLAMA_31_8B).ropes == (Rope(5e5, 8, 8192, 1, 4),)
    cfg, named = hugging_face.config(GEMMA_3_1B), decoder.config("gemma-3-1b")
    np.testing.assert_array_equal(cfg.layer_frequencies(), named.layer_frequencies())
    np.testing.assert_array_equal(cfg.layer_windows(), named.layer_windows())
    assert cfg.embedding_scale == named.embedding_scale


QWEN2 = LLAMA_31_8B | {"model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 30}


@pytest.mark.parametrize(
    ("described", "windows"),
    [
        (LLAMA_31_8B, (None,)),
        (LLAMA_31_8B | {"model_type": "mistral", "sliding_window": 4096}, (4096,)),
        (LLAMA_31_8B | {"model_type": "mistral", "sliding_window": None}, (None,)),
        (QWEN2 | {"use_sliding_window": False}, (None,)),
        (QWEN2 | {"use_sliding_window": True}, (None,) * 30 + (4096,) * 2),
    ],
)
def test_files_of_version_four_imply_which_layers_see_a_window(described, windows):
    assert hugging_face.config(described).windows == windows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma3"}, "no model here for model_type 'gemma3'; there are llama, .*umt5.$"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            r"Its part for text is a gemma3_text. Save that alone, as in transformers Gemma3ForCausalLM",
        ),
        ({"attention_bias": True}, "does not support attention_bias"),
        ({"hidden_act": "relu"}, "no activation 'relu'"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            "these rotary positions: .*yarn",
        ),
    ],
)
def test_what_the_decoder_lacks_is_refused(change, message):
    with pytest.raises(CheckpointError, match=message):
        hugging_face.config(LLAMA_31_8B | change)


def test_a_description_that_is_not_whole_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"config.json, which describes the model, does not exist"):
        hugging_face.config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="does not describe a model"):
        hugging_face.config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match=r"lacks 'vocab_size', .*'num_attention_heads'"):
        hugging_face.config(tmp_path)


def test_all_that_does_not_fit_is_told_at_once():
    cfg = hugging_face.config(GOLDEN / "qwen2")
    biased = hugging_face.config(
        json.loads((GOLDEN / "qwen2/config.json").read_text()) | {"model_type": "qwen3"}
    )
    target = jax.eval_shape(functools.partial(decoder.init, biased), jax.random.key(0))
    source = hugging_face.parameter_map(cfg).to_ours(open_source(GOLDEN / "qwen2"))
    with pytest.raises(CheckpointError) as raised:
        mw.restore(cast(source, [(".*", "float32")]), target)
    assert "layers/q_norm: in the target, but not in the checkpoint" in str(raised.value)
    assert "layers/q_bias: in the checkpoint, but not in the target" in str(raised.value)
    assert set(tree.leaf_names(target)) - source.arrays().keys() == {"layers/q_norm", "layers/k_norm"}
