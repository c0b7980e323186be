"""`convert --map`: from and to Hugging Face's names, as a shell sees it."""

import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.checkpoint import Checkpoints, open_source
from meshwright.cli import main
from meshwright.models import decoder, gpt2, hugging_face, t5

GOLDEN = Path(__file__).parents[1] / "models/golden"
MODELS = {"llama": decoder, "gemma2": decoder, "gpt2": gpt2, "t5v1_1": t5}


def shell(*words):
    return main([*map(str, words)])


def bits(path):
    return {name: (str(x.dtype), np.asarray(x).tobytes()) for name, x in open_source(path).arrays().items()}


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_through_the_shell_changes_no_byte(name, tmp_path):
    theirs, ours, again = GOLDEN / name, tmp_path / "ours", tmp_path / "again"
    assert shell("convert", theirs, ours, "--map", "hugging-face") == 0
    assert shell("convert", ours, again, "--map", "to-hugging-face", "--config", theirs) == 0
    assert bits(again) == bits(theirs)
    assert (again / "config.json").read_bytes() == (theirs / "config.json").read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_a_run_starts_from_what_was_converted(name, tmp_path):
    assert shell("convert", GOLDEN / name, tmp_path, "--map", "hugging-face", "--dtype", "float32") == 0
    cfg = hugging_face.config(GOLDEN / name)
    init = functools.partial(MODELS[name].init, cfg)
    target = mw.abstract_state(init, optax.sgd(1), mw.Layout(jax.make_mesh((1,), ("data",))))
    found = mw.from_checkpoint(str(tmp_path), only="params/.*")(target)
    wanted = mw.restore(
        mw.checkpoint.cast(hugging_face.open_model(GOLDEN / name), [(".*", "float32")]), target.params
    )
    for leaf, array in mw.tree.named_leaves(wanted).items():
        np.testing.assert_array_equal(found[f"params/{leaf}"], array)


def test_of_a_runs_state_only_the_parameters_go_back(tmp_path):
    ours = mw.checkpoint.load(hugging_face.open_model(GOLDEN / "llama"))
    with Checkpoints(tmp_path / "run") as checkpoints:
        checkpoints.save(8, {"params": ours, "opt_state": {"mu": np.zeros(3)}, "step": 8})
    config = GOLDEN / "llama/config.json"
    words = ("convert", tmp_path / "run", tmp_path / "hf", "--map", "to-hugging-face", "--config", config)
    assert shell(*words) == 0
    assert bits(tmp_path / "hf") == bits(GOLDEN / "llama")


def refused(capsys, *words):
    code = shell("convert", *words)
    return code, capsys.readouterr().err


def test_all_that_is_not_of_the_model_is_told_before_anything_is_written(tmp_path, capsys):
    assert shell("convert", GOLDEN / "llama", tmp_path / "ours", "--map", "hugging-face") == 0
    words = (tmp_path / "ours", tmp_path / "hf", "--map", "to-hugging-face", "--config", GOLDEN / "qwen3")
    code, said = refused(capsys, *words)
    assert code == 3
    assert "layers/q_norm: wanted, but not in the checkpoint" in said
    assert not (tmp_path / "hf").exists()


def test_a_model_type_that_is_not_known_is_told_with_the_nearest(tmp_path, capsys):
    shutil.copytree(GOLDEN / "llama", tmp_path / "lama")
    said = json.loads((GOLDEN / "llama/config.json").read_text())
    (tmp_path / "lama/config.json").write_text(json.dumps(said | {"model_type": "lama"}))
    code, said = refused(capsys, tmp_path / "lama", tmp_path / "ours", "--map", "hugging-face")
    assert (code, "model_type 'lama'; did you mean llama?" in said) == (3, True)


def test_the_description_may_lie_elsewhere(tmp_path, capsys):
    shutil.copy(GOLDEN / "gpt2/model.safetensors", tmp_path)
    words = (tmp_path / "model.safetensors", tmp_path / "ours", "--map", "hugging-face")
    code, said = refused(capsys, *words)
    assert (code, f"there is no {tmp_path}/config.json" in said) == (3, True)
    assert shell("convert", *words, "--config", GOLDEN / "gpt2") == 0


def test_another_models_description_is_not_written_over(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    shell("convert", GOLDEN / "llama", tmp_path / "ours", "--map", "hugging-face")
    words = (tmp_path / "ours", tmp_path, "--map", "to-hugging-face", "--config", GOLDEN / "llama")
    code, said = refused(capsys, *words)
    assert (code, "config.json is there already" in said) == (2, True)
    assert not list(tmp_path.glob("*.safetensors"))
