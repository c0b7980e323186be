"""`convert --map`: from and to the names of others, as a shell sees it."""

import functools
import json
import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.cli import main
from meshwright.lm._models import decoder, gpt2, hugging_face, t5

GOLDEN = Path(__file__).parents[1] / "lm/models/golden"
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
    target = mw.training.abstract_state(init, optax.sgd(1), mw.Layout(jax.make_mesh((1,), ("data",))))
    found = mw.engine.from_checkpoint(str(tmp_path), only="params/.*")(target)
    wanted = mw.restore(
        mw.checkpoints.cast(hugging_face.open_model(GOLDEN / name), [(".*", "float32")]), target.params
    )
    for leaf, array in mw.base._internal.named_leaves(wanted).items():
        np.testing.assert_array_equal(found[f"params/{leaf}"], array)


def test_of_a_runs_state_only_the_parameters_go_back(tmp_path):
    ours = mw.checkpoints.load(hugging_face.open_model(GOLDEN / "llama"))
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
    assert "layers/q_norm: in the target, but not in the checkpoint" in said
    assert not (tmp_path / "hf").exists()


def test_a_model_type_that_is_not_known_is_told_with_those_that_are(tmp_path, capsys):
    shutil.copytree(GOLDEN / "llama", tmp_path / "lama")
    said = json.loads((GOLDEN / "llama/config.json").read_text())
    (tmp_path / "lama/config.json").write_text(json.dumps(said | {"model_type": "lama"}))
    code, said = refused(capsys, tmp_path / "lama", tmp_path / "ours", "--map", "hugging-face")
    assert (code, "model_type 'lama'; there are llama, " in said) == (3, True)


def test_the_description_may_lie_elsewhere(tmp_path, capsys):
    shutil.copy(GOLDEN / "gpt2/model.safetensors", tmp_path)
    words = (tmp_path / "model.safetensors", tmp_path / "ours", "--map", "hugging-face")
    code, said = refused(capsys, *words)
    assert (code, f"{tmp_path}/config.json, which describes" in said) == (3, True)
    assert shell("convert", *words, "--config", GOLDEN / "gpt2") == 0


def test_another_models_description_is_not_written_over(tmp_path, capsys):
    (tmp_path / "config.json").write_text("{}")
    shell("convert", GOLDEN / "llama", tmp_path / "ours", "--map", "hugging-face")
    words = (tmp_path / "ours", tmp_path, "--map", "to-hugging-face", "--config", GOLDEN / "llama")
    code, said = refused(capsys, *words)
    assert (code, "config.json exists already" in said) == (2, True)
    assert not list(tmp_path.glob("*.safetensors"))


NAMES = """
from meshwright.lm import Map, Row, Transpose, hugging_face

NAMES = Map(
    (
        Row("embedding", "wte.weight"),
        Row("layers/up", "h.{}.fc.weight", (Transpose(),)),
        Row(("layers/k", "layers/v"), "h.{}.kv", sizes=(2, 3)),
    ),
    ignore=r".*\\.mask",
)
STATE = Map((Row("params/embedding", "wte.weight"), Row("opt_state/mu", "mu")))


def names(scale: int = 1):
    return NAMES


def number():
    return 8


def of(layers):
    return NAMES
"""
THEIRS = {
    "wte.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
    **{f"h.{layer}.fc.weight": np.full((2, 3), layer, np.float32) for layer in range(11)},
    **{f"h.{layer}.kv": np.full((3, 5), layer, np.float32) for layer in range(11)},
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with a module of maps, and a checkpoint with their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_names.py").write_text(NAMES)
    monkeypatch.delitem(sys.modules, "my_names", raising=False)
    export_safetensors(as_source(THEIRS | {"h.0.mask": np.ones(3, np.float32)}, "theirs"), "theirs")
    return tmp_path


@pytest.mark.parametrize("name", ["NAMES", "names"])
def test_a_map_of_ones_own_goes_there_and_back_too(name, mine):
    assert shell("convert", "theirs", "ours", "--map", f"my_names:{name}") == 0
    ours = open_source("ours").arrays()
    assert {name: x.shape for name, x in ours.items()} == {
        "params/embedding": (4, 3),
        "params/layers/up": (11, 3, 2),
        "params/layers/k": (11, 3, 2),
        "params/layers/v": (11, 3, 3),
    }
    assert shell("convert", "ours", "again", "--map", f"to-my_names:{name}") == 0
    assert list(Path("again").glob("*.safetensors"))
    assert bits("again").keys() == THEIRS.keys()
    assert bits("again") == {key: x for key, x in bits("theirs").items() if "mask" not in key}


def test_what_is_chosen_is_so_by_our_names_and_the_format_too(mine):
    assert shell("convert", "theirs", "ours", "--map", "my_names:NAMES", "--only", "params/embedding") == 0
    assert bits("ours").keys() == {"params/embedding"}
    words = ("--only", "embedding", "--dtype", "float16", "--to", "npz")
    assert shell("convert", "ours", "theirs.npz", "--map", "to-my_names:NAMES", *words) == 0
    assert {name: dtype for name, (dtype, _) in bits("theirs.npz").items()} == {"wte.weight": "float16"}


def test_a_map_of_a_whole_state_says_what_parameters_are(mine):
    with Checkpoints(mine / "state") as checkpoints:
        checkpoints.save(8, {"params": {"embedding": np.ones((4, 3))}, "opt_state": {"mu": np.zeros(3)}})
    assert shell("convert", "state", "there", "--map", "to-my_names:STATE") == 0
    assert bits("there").keys() == {"wte.weight", "mu"}
    assert shell("convert", "there", "back", "--map", "my_names:STATE") == 0
    assert bits("back") == bits("state")


def test_what_a_map_has_no_row_for_is_refused_before_anything_is_written(mine, capsys):
    export_safetensors(as_source(THEIRS | {"step": np.ones(1)}, "more"), "more")
    code, said = refused(capsys, "more", "ours", "--map", "my_names:NAMES")
    assert (code, "no row for step" in said) == (3, True)
    assert not Path("ours").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["huggingface"], "--map 'huggingface' is unknown. Write hugging-face, t5x, or module:map"),
        (["my_name:NAMES"], "there is no module 'my_name'"),
        (["my_names:NAMS"], "module my_names has no map 'NAMS'. Did you mean 'NAMES'?"),
        (["to-my_names:number"], "--map my_names:number must return an mw.lm.Map; it returned"),
        (["my_names:of"], "--map my_names:of is a function that must take no arguments: missing"),
        (["my_names:NAMES", "--config", "x"], "--config has no effect without --map hugging-face"),
    ],
)
def test_what_is_no_map_is_told(words, message, mine, capsys):
    code, said = refused(capsys, "theirs", "ours", "--map", *words)
    assert (code, message in said) == (2, True), said


def test_a_map_may_be_named_by_its_file(mine):
    assert main(["convert", "theirs", "ours", "--map", "my_names.py:NAMES"]) == 0
    assert Path("ours").exists()
