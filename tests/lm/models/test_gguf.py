"""GGUF files, held against what llama.cpp makes of them: golden/make_gguf.py."""

import dataclasses
import hashlib
import json
from pathlib import Path

import gguf
import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
from lm.models import gguf_cases as cases
from meshwright.errors import CheckpointError, UsageError
from meshwright.lm._models import decoder, t5
from meshwright.lm._models._with_cache import with_cache
from pairs import slow_first

GOLDEN = json.loads((Path(__file__).parent / "golden/gguf.json").read_text())


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", cases.FAMILIES)
def test_the_file_of_each_family_is_the_one_that_llama_cpp_read(name, tmp_path):
    path = cases.write_model(name, tmp_path, tokenizer=cases.folder_of("letters", tmp_path))
    assert digest(path) == GOLDEN["models"][name]["sha256"]


@pytest.mark.parametrize("name", slow_first("gemma3", *(x for x in cases.FAMILIES if x != "gemma3")))
def test_llama_cpp_writes_the_tokens_that_the_model_writes_here(name):
    model, params = with_cache(cases.CONFIGS[name]), cases.params_of(cases.CONFIGS[name])
    greedy = mw.lm.Decoding(max_new_tokens=cases.NEW)
    rows = mw.lm.generate(model, params, cases.PROMPTS, greedy, length=cases.LENGTH)
    theirs = GOLDEN["models"][name]["rows"]
    assert [row[: len(each["id"])].tolist() for row, each in zip(rows, theirs, strict=True)] == [
        each["id"] for each in theirs
    ]
    assert sum(len(each["id"]) for each in theirs) >= 2 * cases.NEW  # llama.cpp ends a row at its end token
    scored = mw.lm.score(model, params, rows, cases.PROMPTS)
    has_gelu = name.startswith(("gemma", "gpt2"))  # which llama.cpp reads from a table in float16
    for one, each in zip(scored, theirs, strict=True):
        found = one.log_probs[: len(each["id"])]
        np.testing.assert_allclose(found, each["logprob"], atol=2e-3 if has_gelu else 1e-5)


@pytest.mark.parametrize("kind", cases.KINDS)
def test_llama_cpp_cuts_texts_into_the_tokens_of_the_tokenizer(kind, tmp_path):
    folder = cases.folder_of(kind, tmp_path)
    path = cases.write_model("words", tmp_path, tokenizer=folder)
    assert digest(path) == GOLDEN["tokenizers"][kind]["sha256"]
    tokenizer = mw.data.chat(folder).files.tokenizer
    for text, theirs in GOLDEN["tokenizers"][kind]["tokens"].items():
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs, text


def test_the_reader_of_gguf_finds_names_shapes_numbers_and_settings(tmp_path):
    cfg = dataclasses.replace(cases.LLAMA, layers=1)
    params = cases.params_of(cfg, ml_dtypes.bfloat16)
    reader = gguf.GGUFReader(mw.lm.gguf.export_model(params, cfg, tmp_path / "m.gguf", context_length=64))
    found = {each.name: each for each in reader.tensors}
    parts = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ]
    assert {*found} == {
        *(f"{name}.weight" for name in ("token_embd", "output_norm", "output")),
        *(f"blk.0.{part}.weight" for part in parts),
    }
    up, norm = found["blk.0.ffn_up.weight"], found["blk.0.attn_norm.weight"]
    assert (up.shape.tolist(), up.tensor_type.name, norm.tensor_type.name) == ([32, 48], "BF16", "F32")
    np.testing.assert_array_equal(up.data.view(ml_dtypes.bfloat16), params["layers"]["up"][0].T)
    rows = found["blk.0.attn_k.weight"].data.view(ml_dtypes.bfloat16).reshape(2, 4, 2, 32)
    np.testing.assert_array_equal(  # the first and the second of each rotary pair, half a head apart here
        rows.swapaxes(1, 2).reshape(16, 32), params["layers"]["k"][0].T
    )
    said = {name: field.contents() for name, field in reader.fields.items()}
    assert said["general.architecture"] == "llama"
    assert (said["llama.attention.head_count"], said["llama.attention.head_count_kv"]) == (4, 2)
    assert said["tokenizer.ggml.model"] == "none"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"activation": "gelu"}, "activation is 'gelu'; expected 'silu'"),
        ({"query_scale": 0.5}, "query_scale is 0.5; expected 0.353"),
        ({"query_bias": True, "query_norm": True}, "no family has these norms and biases"),
        ({"query_bias": True, "head": 16}, "heads of qwen2 must be model / heads = 8 large; found 16"),
        ({"logit_cap": 3.0}, "neither is known"),
        ({"ropes": (decoder.Rope(), decoder.Rope(5.0))}, "llama has others"),
        ({"norm_offset": 1.0}, "embedding_scale is 1.0"),
    ],
)
def test_a_decoder_that_gguf_does_not_know_is_refused_with_what_differs(changes, says, tmp_path):
    cfg = dataclasses.replace(cases.LLAMA, **changes)
    with pytest.raises(UsageError, match=says):
        mw.lm.gguf.export_model(cases.params_of(cfg), cfg, tmp_path / "m.gguf", context_length=8)
    assert not [*tmp_path.iterdir()]


def test_what_cannot_be_written_is_told_and_nothing_is_left(tmp_path):
    cfg, to = cases.LLAMA, tmp_path / "m.gguf"
    params = cases.params_of(cfg)

    def refused(says, *given, error=UsageError, **options):
        with pytest.raises(error, match=says):
            mw.lm.gguf.export_model(*given, **options)

    refused("--context-length 4096", params, cfg, to)
    refused("must end with .gguf", params, cfg, tmp_path / "m.bin", context_length=8)
    refused("decoders and GPT-2", {}, t5.Config(), to, context_length=8)
    refused("head", {**params, "head": np.zeros(3)}, cfg, to, error=CheckpointError, context_length=8)
    whole = jax.tree.map(lambda x: x.astype(np.float64), params)
    refused("is float64; GGUF files are written of", whole, cfg, to, context_length=8)
    folder = cases.folder_of("gpt-2", tmp_path)
    refused(
        "has 377 tokens, and the model 48",
        params,
        cfg,
        to,
        tokenizer=folder,
        context_length=8,
    )
    mw.data.train_tokenizer(["a b c"] * 9, tmp_path / "words", vocab_size=30, kind="wordpiece")
    refused("WordPiece after BertPre", params, cfg, to, tokenizer=tmp_path / "words", context_length=8)
    assert not to.exists()
    mw.lm.gguf.export_model(params, cfg, to, context_length=8)
    refused("exists already", params, cfg, to, context_length=8)


def test_a_window_that_gguf_does_not_know_bounds_the_context(tmp_path):
    reader = gguf.GGUFReader(cases.write_model("mistral", tmp_path))
    assert reader.fields["llama.context_length"].contents() == 24
