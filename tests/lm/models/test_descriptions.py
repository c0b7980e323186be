"""What a `config.json` may say, or leave out: as `transformers` takes it, or refused by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError
from meshwright.lm._models import hugging_face

GOLDEN = Path(__file__).parent / "golden"
SIZES = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
}
LLAMA = SIZES | {"model_type": "llama"}
GEMMA3 = SIZES | {"model_type": "gemma3_text"}
GPT2 = {"model_type": "gpt2", "vocab_size": 48, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32}


def said(name):
    return json.loads((GOLDEN / name / "config.json").read_text())


@pytest.mark.parametrize(
    ("kind", "key_heads", "head", "windows"),
    [
        ("llama", 32, 2, (None,)),
        ("mistral", 8, 2, (4096,)),
        ("qwen2", 32, 2, (None,)),
        ("qwen3", 32, 128, (None,)),
        ("mixtral", 8, 2, (None,)),
        ("qwen3_moe", 4, 2, (None,)),
        ("gemma", 16, 256, (None,)),
        ("gemma2", 4, 256, (4096, None, 4096, None)),
        ("gemma3_text", 4, 256, (4096,)),
    ],
)
def test_what_is_left_out_is_as_the_family_has_it(kind, key_heads, head, windows):
    cfg = hugging_face.config(SIZES | {"model_type": kind})
    assert (cfg.num_key_heads, cfg.head_size, cfg.windows) == (key_heads, head, windows)
    assert (cfg.attention_cap, cfg.logit_cap) == ((50, 30) if kind == "gemma2" else (None, None))
    assert cfg.query_scale == (1 / 16 if kind in ("gemma2", "gemma3_text") else None)


def test_what_is_null_is_not_left_out():
    nothing = {"num_key_value_heads": None, "head_dim": None, "sliding_window": None}
    cfg = hugging_face.config(LLAMA | nothing | {"model_type": "mistral"})
    assert (cfg.num_key_heads, cfg.head_size, cfg.windows) == (32, 2, (None,))


def test_layer_types_count_where_transformers_reads_them():
    types = {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 8}
    windows = {
        kind: hugging_face.config(SIZES | types | {"model_type": kind, "use_sliding_window": True}).windows
        for kind in ("llama", "gemma", "mistral", "qwen2", "gemma2")
    }
    mixed = (8, None, 8, None)
    assert windows == {"llama": (None,), "gemma": (None,), "mistral": (8,), "qwen2": mixed, "gemma2": mixed}
    unused = hugging_face.config(SIZES | types | {"model_type": "qwen2", "use_sliding_window": False})
    assert unused.windows == (None,)


def test_the_base_of_angles_may_stand_beside_their_other_parameters():
    (rope,) = hugging_face.config(
        LLAMA | {"rope_theta": 5e5, "rope_parameters": {"rope_type": "default"}}
    ).ropes
    assert rope.base == 5e5
    ropes = hugging_face.config(GEMMA3 | {"num_hidden_layers": 6, "rope_parameters": None}).ropes
    assert [rope.base for rope in ropes] == [1e4] * 5 + [1e6]


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (LLAMA | {"hidden_size": None, "vocab_size": None}, "lacks 'vocab_size', 'hidden_size'"),
        (LLAMA | {"hidden_size": "64"}, "hidden_size is '64'.* whole numbers"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        (LLAMA | {"num_key_value_heads": 5}, r"key_heads is 5, which does not divide heads=32"),
        (LLAMA | {"model_type": "mistral", "sliding_window": "8"}, "windows is .*'8'"),
        (LLAMA | {"model_type": ["llama"]}, r"no model here for model_type \['llama'\]"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, "quantized .*gptq"),
        (
            LLAMA | {"partial_rotary_factor": 0.5},
            "these rotary positions: .*partial_rotary_factor",
        ),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 2, "mscale": 3}},
            "these rotary .*'mscale': 3",
        ),
        (LLAMA | {"rope_parameters": {"factor": 2}}, "these rotary positions: .*'factor': 2"),
        (
            LLAMA | {"of_next_year": 2, "mlp_bias": True},
            "not support of_next_year=2, mlp_bias=True of the config",
        ),
        (LLAMA | {"query_pre_attn_scalar": 8}, "the llama here does not support query_pre_attn_scalar=8"),
        (LLAMA | {"rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6', not a number"),
        (LLAMA | {"rms_norm_eps": None}, "rms_norm_eps is null"),
        (LLAMA | {"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', not true or false"),
        (
            LLAMA | {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}},
            r"rope_theta is 500000.0, but rope_parameters\.rope_theta, which means the same, is 10000.0",
        ),
        (
            SIZES | {"model_type": "mixtral", "num_experts": 4, "num_local_experts": 8},
            "num_experts is 4, but num_local_experts, which means the same, is 8",
        ),
        (GPT2 | {"hidden_size": 32}, "hidden_size is 32, but n_embd, which means the same, is 24"),
        (GPT2 | {"pruned_heads": {"0": [1]}}, "gpt2 here does not support pruned_heads"),
        (said("t5") | {"dense_act_fn": "silu"}, "dense_act_fn='silu' beside feed_forward_proj 'relu'"),
        (LLAMA | {"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "lacks 'factor'"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor is '2'"),
        (GEMMA3 | {"layer_types": ["chunked_attention"] * 4}, "layer_types .*chunked_attention"),
        (GEMMA3 | {"layer_types": ["full_attention"] * 3}, "layer_types has 3 entries for 4 layers"),
        (
            GEMMA3 | {"attn_logit_softcapping": 50.0},
            "gemma3_text here does not support attn_logit_softcapping=50.0",
        ),
        (GEMMA3 | {"hidden_activation": "gelu"}, "no activation 'gelu'"),
        (GPT2 | {"scale_attn_weights": False}, "does not support scale_attn_weights=False"),
        (GPT2 | {"tie_word_embeddings": False}, "does not support tie_word_embeddings=False"),
        (GPT2 | {"n_embd": 25}, "Config.heads is 4, which does not divide model=25"),
    ],
)
def test_what_cannot_be_is_refused_by_name(described, message):
    with pytest.raises(CheckpointError, match=message):
        hugging_face.config(described)


PUBLISHED = [  # keys of files as their makers published them
    LLAMA | {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}},
    said("gemma2")
    | {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 5},
    GPT2
    | {
        "n_ctx": 32,
        "n_special": 0,
        "predict_special_tokens": True,
        "_num_labels": 1,
        "summary_type": "cls_index",
    },
    said("t5") | {"n_positions": 512, "output_past": True, "task_specific_params": {"a": {"num_beams": 4}}},
    said("umt5") | {"scalable_attention": True, "tokenizer_class": "T5Tokenizer"},
    said("qwen2") | {"use_mrope": False, "torch_dtype": "bfloat16", "eos_token_id": [1, 2]},
]


@pytest.mark.parametrize("described", PUBLISHED)
def test_published_files_are_read_whatever_more_they_say(described):
    hugging_face.config(described)


def test_keys_that_are_off_or_change_nothing_are_taken():
    off = {"of_next_year": None, "use_mrope": False, "pruned_heads": {}, "top_k": 50, "id2label": {"0": "a"}}
    assert hugging_face.config(LLAMA | off) == hugging_face.config(LLAMA)


def test_the_old_name_of_gemmas_activation_means_the_same():
    old = said("gemma") | {"hidden_act": "gelu", "hidden_activation": None}
    assert hugging_face.config(old) == hugging_face.config(said("gemma"))


def test_a_file_that_holds_no_object_is_no_description(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="does not describe a model"):
        hugging_face.config(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", ""])
def test_a_model_is_opened_by_its_file_or_its_directory(name):
    assert "embedding" in hugging_face.open_model(f"{GOLDEN}/gpt2/{name}").arrays()


def test_a_cache_of_links_is_a_directory_as_any(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/8f0c"
    shutil.copytree(GOLDEN / "llama", blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    assert hugging_face.open_model(snapshot).arrays().keys() == load_names("llama")


def load_names(name):
    return hugging_face.open_model(GOLDEN / name).arrays().keys()


def model(folder, name, change):
    """Return a folder with one of the models, whose arrays are changed."""
    arrays = dict(open_source(GOLDEN / name).arrays())
    change(arrays)
    export_safetensors(as_source(arrays, "changed"), folder)
    shutil.copy(GOLDEN / name / "config.json", folder)
    return folder


def test_a_model_without_its_head_has_names_without_their_beginning(tmp_path):
    def shorten(arrays):
        for name in list(arrays):
            arrays[name.removeprefix("model.")] = arrays.pop(name)

    assert hugging_face.open_model(model(tmp_path, "qwen2", shorten)).arrays().keys() == load_names("qwen2")


@pytest.mark.parametrize(
    ("name", "embedding", "copied"),
    [
        ("qwen2", "model.embed_tokens.weight", "lm_head.weight"),
        ("gpt2", "transformer.wte.weight", "lm_head.weight"),
        ("t5", "shared.weight", "lm_head.weight"),
        ("t5v1_1", "shared.weight", "encoder.embed_tokens.weight"),
        ("umt5", "shared.weight", "decoder.embed_tokens.weight"),
    ],
)
def test_a_tied_head_that_is_another_is_not_left_out_without_a_word(name, embedding, copied, tmp_path):
    def add_head(arrays):
        arrays[copied] = np.asarray(arrays[embedding]).astype(np.float32)

    same = model(tmp_path / "same", name, add_head)
    assert hugging_face.open_model(same).arrays().keys() == load_names(name)

    def add_other(arrays):
        add_head(arrays)
        arrays[copied][-1] += 1

    with pytest.raises(CheckpointError, match=rf"{copied} is not the embedding, though"):
        hugging_face.open_model(model(tmp_path / "other", name, add_other))


def test_a_mixture_of_qwen_may_say_the_number_of_experts_in_two_ways():
    for name in ("num_experts", "num_local_experts"):
        cfg = hugging_face.config(SIZES | {"model_type": "qwen3_moe", name: 16, "moe_intermediate_size": 24})
        assert (cfg.experts, cfg.experts_per_token, cfg.normalize_experts) == (16, 8, False)
        assert cfg.feed_forward == 24


@pytest.mark.parametrize("name", ["mlp_only_layers", "decoder_sparse_step"])
def test_layers_without_experts_beside_those_with_them_are_refused(name):
    value = {"mlp_only_layers": [1], "decoder_sparse_step": 2}[name]
    with pytest.raises(CheckpointError, match=f"does not support {name}"):
        hugging_face.config(SIZES | {"model_type": "qwen3_moe", name: value})


def test_a_missing_expert_is_told():
    cfg = hugging_face.config(GOLDEN / "mixtral")
    theirs = dict(open_source(GOLDEN / "mixtral").arrays())
    gone = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    del theirs[gone]
    with pytest.raises(CheckpointError, match="of expert 2 in 1 layers, but of expert 0 in 2"):
        hugging_face.to_ours(as_source(theirs, "theirs"), cfg)
