"""`meshwright export`: the model of a run as one file, as a shell sees it."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import gguf
import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.lm._checkpoint_models import export_checkpoint
from meshwright.lm._models import decoder

CFG = decoder.Config(vocabulary=32, model=8, layers=1, heads=2, feed_forward=8)
ROWS = {"x": np.arange(24, dtype=np.float32).reshape(8, 3), "label": np.arange(8)}


def score(params, batch):
    return batch["x"] @ params["w"]


def loss(params, batch):
    return ((score(params, batch) - batch["label"]) ** 2).mean()


def accuracy(examples, preds):
    return {"error": float(np.mean([abs(p - y) for p, y in zip(preds, examples["label"], strict=True)]))}


def scored(workdir: str = "runs/scored") -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (3,))},
        loss=loss,
        optimizer=optax.sgd(1e-4),
        input=mw.Input(ROWS, batch_size=8),
        max_steps=1,
        evaluations={"test": mw.Evaluation(None, ROWS, predict=score, metric_fn=accuracy)},
    )


def writes(workdir: str = "runs/writes") -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=functools.partial(decoder.init, CFG),
        loss=functools.partial(decoder.loss, CFG),
        optimizer=optax.sgd(1e-2),
        input=mw.Input({"tokens": np.ones((8, 6), np.int32)}, batch_size=8),
        max_steps=2,
    )


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with this module, to train in; the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported.py").write_text(Path(__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("exported", None)


def params_of(run):
    return {
        name: np.asarray(x)
        for name, x in mw.checkpoints.open_source(run).arrays().items()
        if name.startswith("params/")
    }


def test_the_predictions_of_an_evaluation_are_exported_without_what_they_do_not_need(here):
    mw.run(scored())
    step, path = export_checkpoint(scored(), "m.jaxexport", run="runs/scored")
    program = mw.engine.load_program(path)
    assert (step, program.inputs) == (1, {"x": "float32[batch, 3]"})
    wanted = ROWS["x"][:5] @ params_of("runs/scored")["params/w"]
    np.testing.assert_allclose(program({"x": ROWS["x"][:5]}), wanted, rtol=1e-5)
    with pytest.raises(UsageError, match=r"no evaluation named 'tset' .* there are test: name one"):
        export_checkpoint(scored(), "n.jaxexport", run="runs/scored", evaluation="tset")
    bare = dataclasses.replace(scored(), evaluations={})
    with pytest.raises(UsageError, match=r"`mw\.Evaluation\(predict=…\)`; or, in Python: mw\.engine\.export"):
        export_checkpoint(bare, "n.jaxexport", run="runs/scored")


@pytest.mark.slow
def test_a_run_is_exported_and_computes_what_its_model_does(here, capsys):
    assert main(["train", "exported:writes"]) == 0
    capsys.readouterr()
    assert main(["export", "runs/writes", "--to", "model.jaxexport", "--platforms", "cpu,tpu"]) == 0
    out, err = capsys.readouterr()
    assert "takes    int32[batch, length]\n  returns  float32[batch, length, 32]\n  runs on  cpu, tpu" in out
    assert "exporting by exported:writes" in err
    params = mw.base._internal.nested(params_of("runs/writes"))["params"]
    tokens = np.arange(6, dtype=np.int32)[None]
    wanted = decoder.logits(CFG, jax.tree.map(jax.numpy.asarray, params), tokens)
    np.testing.assert_allclose(mw.engine.load_program("model.jaxexport")(tokens), wanted, atol=1e-5)


@pytest.mark.slow
def test_weights_alone_are_those_that_convert_writes(here, capsys):
    words = ["--by", "exported:writes", "--json"]
    assert main(["train", "exported:writes"]) == 0
    assert main(["export", "runs/writes", "--to", "weights.safetensors", *words]) == 0
    capsys.readouterr()
    assert main(["convert", "runs/writes", "hf", "--to", "safetensors", "--subtree", "params"]) == 0
    ours, theirs = (mw.checkpoints.open_source(path).arrays() for path in ("weights.safetensors", "hf"))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_the_document_has_the_files_and_what_the_program_takes(here, capsys):
    assert main(["train", "exported:writes"]) == 0
    capsys.readouterr()
    words = ["export", "runs/writes", "--to", "m.jaxexport", "--arrays", "beside", "--step", "2", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert {Path(name).name for name in found["files"]} == {"m.jaxexport", "m.safetensors"}
    assert found["inputs"] == "int32[batch, length]"
    assert found["checkpoint"] == "runs/writes/checkpoints/step_00000002"


def test_a_name_that_says_no_format_is_refused(capsys):
    assert main(["export", "runs/none", "--to", "model.onnx"]) == 2
    assert "expected a name that ends with .jaxexport" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_exported_for_llama_cpp(here, capsys):
    assert main(["train", "exported:writes"]) == 0
    words = ["export", "runs/writes", "--to", "model.gguf"]
    assert main(words) == 2
    assert "--context-length 4096" in capsys.readouterr().err
    assert main([*words, "--context-length", "16"]) == 0
    reader = gguf.GGUFReader("model.gguf")
    up = next(each.data for each in reader.tensors if each.name == "blk.0.ffn_up.weight")
    np.testing.assert_array_equal(up, params_of("runs/writes")["params/layers/up"][0].T)
