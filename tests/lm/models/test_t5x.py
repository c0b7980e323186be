"""T5 of T5X: held to what PyTorch made of the same parameters, see golden/make_t5x.py, and to T5X's files."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from checkpoints.formats.readers.real import FIXTURES
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._formats._export_t5x import export_t5x
from meshwright.checkpoints._formats._open import open_source
from meshwright.cli import main
from meshwright.errors import CheckpointError
from meshwright.lm._models import hugging_face, t5, t5x

GOLDEN = Path(__file__).parent / "golden/t5x"
FORMS = {"t5_1_0": "to-t5x", "t5_1_1": "to-t5x", "scanned": "to-t5x-scanned"}
TINY = FIXTURES / "t5x/upstream_testdata/test_t5_tiny.checkpoint_0"
CFG = t5.Config(14, 16, layers=3, decoder_layers=3, heads=2, head=4, feed_forward=24)


def read(source):
    return {name: np.asarray(x) for name, x in source.arrays().items()}


def bits(source, below=""):
    arrays = {name: x for name, x in source.arrays().items() if name.startswith(below)}
    return {name: (x.shape, str(x.dtype), np.asarray(x).tobytes()) for name, x in arrays.items()}


def theirs_of(name):
    return open_source(GOLDEN / name / "target.safetensors")


def logits_of(source, cfg, golden):
    params = mw.restore(source, jax.eval_shape(functools.partial(t5.init, cfg), jax.random.key(0)))
    return jax.jit(functools.partial(t5.logits, cfg))(
        params, golden["input_ids"], golden["decoder_input_ids"]
    )


def shell(*words):
    return main([*map(str, words)])


def random_params(cfg, seed=0):
    random, shapes = (
        np.random.default_rng(seed),
        jax.eval_shape(functools.partial(t5.init, cfg), jax.random.key(0)),
    )
    return jax.tree.map(lambda x: random.normal(0, 0.3, x.shape).astype(x.dtype), shapes)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.daily(1)
def test_logits_are_those_of_pytorch_from_the_same_parameters(name):
    golden, theirs = read(open_source(GOLDEN / name / "expected.safetensors")), theirs_of(name)
    found = logits_of(t5x.to_ours(theirs), t5x.config(theirs), golden)
    np.testing.assert_allclose(found, golden["logits"], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.daily(1)
def test_to_hugging_face_and_back_changes_no_byte(name, tmp_path):
    theirs, hf, ours, again = (tmp_path / each for each in ("theirs", "hf", "ours", "again"))
    export_t5x(theirs_of(name), theirs, step=7)
    assert shell("convert", theirs, hf, "--map", "to-hugging-face") == 0
    assert shell("convert", hf, ours, "--map", "hugging-face") == 0
    assert shell("convert", ours, again, "--map", FORMS[name]) == 0
    assert bits(open_source(again), "target/") == bits(open_source(theirs), "target/")
    assert bits(hugging_face.open_model(hf)) == bits(t5x.open_model(theirs))
    assert hugging_face.config(hf) == t5x.config(open_source(theirs))


def test_a_shared_bias_is_repeated_for_layers_that_are_scanned_and_read_as_one():
    params = random_params(CFG)
    scanned = t5x.to_theirs(params, scanned=True)
    table = np.asarray(scanned.arrays()["target/encoder/encoder/relpos_bias/rel_embedding"])
    assert table.shape == (2, 3, 32)
    np.testing.assert_array_equal(table[:, 2], params["encoder"]["position_bias"].T)
    assert t5x.config(scanned) == CFG
    assert bits(t5x.to_ours(scanned)) == bits(mw.checkpoints._internal.source_of(params, "params"))


def test_scanned_layers_lie_along_the_second_dimension_and_heads_apart():
    params = random_params(CFG)
    arrays = read(t5x.to_theirs(params, scanned=True))
    query, out = (arrays[f"target/decoder/decoder/self_attention/{name}/kernel"] for name in ("query", "out"))
    assert (query.shape, out.shape) == ((16, 3, 2, 4), (2, 3, 4, 16))
    layers = params["decoder"]["layers"]
    np.testing.assert_array_equal(query[:, 1, 1], layers["q"][1, :, 4:])
    np.testing.assert_array_equal(out[1, 2], layers["o"][2, 4:])


@pytest.mark.parametrize("scanned", [False, True])
def test_heads_are_apart_or_side_by_side_whether_layers_are_scanned_or_not(scanned):
    cfg = t5.Config(14, 16, layers=2, decoder_layers=2, heads=2, head=4, feed_forward=24, shared_bias=False)
    params = mw.checkpoints._internal.source_of(random_params(cfg), "params")
    for heads_apart in (False, True):
        names = t5x.parameter_map(cfg, scanned=scanned, heads_apart=heads_apart)
        theirs = names.to_theirs(params)
        assert t5x.config(theirs) == cfg
        assert bits(t5x.to_ours(theirs)) == bits(params)


def test_what_is_no_t5_is_refused_with_what_was_expected(tmp_path, capsys):
    arrays = dict(theirs_of("t5_1_1").arrays())
    arrays.pop("target/decoder/layers_1/mlp/wo/kernel")
    with pytest.raises(CheckpointError, match="decoder/layers/down"):
        t5x.to_ours(as_source(arrays, "mine"))
    with pytest.raises(CheckpointError, match=r"expected target/encoder/layers_0/attention/query/kernel"):
        t5x.to_ours(as_source({"target/token_embedder/embedding": np.ones((4, 2))}, "mine"))
    surplus = dict(theirs_of("t5_1_1").arrays()) | {"target/decoder/adapter": np.ones(3)}
    with pytest.raises(CheckpointError, match="target/decoder/adapter"):
        t5x.to_ours(as_source(surplus, "mine"))
    export_t5x({"params": {"w": np.ones(3)}}, tmp_path / "other", step=1)
    assert shell("convert", tmp_path / "other", tmp_path / "hf", "--map", "to-hugging-face") == 2
    assert "needs the model's config.json" in capsys.readouterr().err


def test_the_config_that_is_written_is_read_as_the_same_model(tmp_path):
    for cfg in (CFG, t5.Config(14, 16, 2, 3, 2, 4, 24, gated=False, tied=True, shared_bias=False, buckets=8)):
        said = hugging_face.config_json(cfg)
        (tmp_path / "config.json").write_text(json.dumps(said))
        assert hugging_face.config(tmp_path) == cfg


@pytest.mark.slow
def test_with_a_bias_for_each_layer_tokens_are_generated_as_the_logits_say():
    cfg = t5.Config(14, 16, layers=2, decoder_layers=2, heads=2, head=4, feed_forward=24, shared_bias=False)
    params, prompt = random_params(cfg), np.array([[3, 9, 4, 1]])
    [found] = mw.lm.generate(mw.lm.with_cache(cfg), params, prompt, mw.lm.Decoding(max_new_tokens=5))
    logits = jax.jit(functools.partial(t5.logits, cfg))(params, prompt, np.array([[0, *found[:-1]]]))
    assert list(found) == logits[0].argmax(-1).tolist()


@pytest.mark.others
def test_a_checkpoint_of_t5x_goes_to_hugging_face_and_back_to_the_byte(tmp_path):
    assert shell("convert", TINY, tmp_path / "hf", "--map", "to-hugging-face") == 0
    assert shell("convert", TINY, tmp_path / "scanned", "--map", "to-t5x-scanned") == 0
    assert shell("convert", tmp_path / "scanned", tmp_path / "again", "--map", "to-hugging-face") == 0
    assert bits(open_source(tmp_path / "again")) == bits(open_source(tmp_path / "hf"))
    assert shell("convert", tmp_path / "hf", tmp_path / "ours", "--map", "hugging-face") == 0
    assert shell("convert", tmp_path / "ours", tmp_path / "back", "--map", "to-t5x") == 0
    assert bits(open_source(tmp_path / "back"), "target/") == bits(open_source(TINY), "target/")
    assert hugging_face.config(tmp_path / "hf").vocabulary == 32_128
