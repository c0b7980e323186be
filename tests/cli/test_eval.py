"""`meshwright eval`: the scores of a run's checkpoint as a shell sees them, and whose code is run."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

import meshwright as mw
from launched import by_process
from meshwright.cli import main

MODULE = """
import numpy as np, optax
import meshwright as mw

def init(key):
    return {"w": np.ones((4, 2), np.float32)}

def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).sum(-1)}

def loss(params, batch, key):
    return measure(params, batch)["loss"].mean()

def experiment(workdir: str = "runs/tiny", max_steps: int = 6, scale: float = 1.0) -> mw.Experiment:
    examples = {"x": np.full((16, 4), scale, np.float32)}
    return mw.Experiment(
        workdir=workdir, model=init, loss=loss, optimizer=optax.sgd(0.001),
        input=mw.Input(examples, batch_size=8), max_steps=max_steps,
        evaluations={"test": mw.Evaluation(measure, examples, when=2, batch_size=8)},
        save=mw.Save(when=2, keep=mw.checkpoints.keep_any(9, mw.checkpoints.best("test/loss", "min"))),
    )

def without(workdir: str = "runs/none", max_steps: int = 2) -> mw.Experiment:
    import dataclasses
    made = experiment(workdir, max_steps)
    return dataclasses.replace(made, evaluations={}, save=mw.Save(when=2))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `mine.py` and a run of it; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "mine.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delitem(sys.modules, "mine", raising=False)
        assert main(["train", "mine:experiment"]) == 0
    return folder


@pytest.fixture
def here(trained, monkeypatch):
    """The same as the current directory."""
    monkeypatch.chdir(trained)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield trained
    sys.modules.pop("mine", None)


@pytest.fixture
def copy(trained, tmp_path, monkeypatch):
    """A copy of it that may be changed, as the current directory."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path / "copy"
    sys.modules.pop("mine", None)


def reported(step):
    reports = mw.observe.read_jsonl(Path("runs/tiny/metrics.jsonl"))
    return next(report["test/loss"] for report in reports if report["step"] == step and "test/loss" in report)


def answer(capsys, *words):
    capsys.readouterr()
    code = main(["eval", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "step"),
    [
        ((), 6),
        (("--step", "2"), 2),
        (("--best",), 6),
        (("--best", "test/loss:max"), 2),
        (("mesh=data=2,fsdp=4",), 6),
    ],
)
def test_a_checkpoint_is_scored_as_in_training_and_nothing_is_written(here, capsys, words, step):
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if "__pycache__" not in str(path)}
    code, found = answer(capsys, "runs/tiny", *words, "--fake-devices", "8")
    assert (code, found["step"]) == (0, step)
    assert found["checkpoint"] == f"runs/tiny/checkpoints/step_{step:08d}"
    assert found["scores"] == {"test/loss": pytest.approx(reported(step), rel=1e-6)}
    after = {path: path.stat().st_mtime_ns for path in here.rglob("*") if "__pycache__" not in str(path)}
    assert after == before


def test_the_scores_are_a_table(here, capsys):
    assert main(["eval", "runs/tiny", "--best"]) == 0
    captured = capsys.readouterr()
    place, _, head, row = captured.out.splitlines()
    assert place == "runs/tiny/checkpoints/step_00000006"
    assert head.split() == ["score", "step", "6"]
    assert row.split() == ["test/loss", f"{reported(6):.6g}"]
    assert "evaluating by mine:experiment" in captured.err


def test_settings_evaluate_on_other_data(here, capsys):
    _, same = answer(capsys, "runs/tiny")
    _, other = answer(capsys, "runs/tiny", "scale=2.0", "evaluations.test.batch_size=16")
    assert other["scores"]["test/loss"] == pytest.approx(4 * same["scores"]["test/loss"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--step", "5"), 3, "no checkpoint of step 5 in"),
        (("--step", "5"), 3, "The nearest is of step 6."),
        (("--best", "loss"), 3, "Did you mean 'test/loss'?"),
        (("--best", "loss"), 3, "The run keeps its best checkpoints by test/loss (min)"),
        (("--best", "--step", "2"), 2, "not allowed with argument"),
        (("workdir=runs/other",), 2, "leave out workdir=runs/other"),
        (("scael=2",), 2, "Did you mean 'scale'?"),
        (("mine:without",), 2, "runs/tiny was started from mine:experiment, not from mine:without"),
    ],
)
def test_what_is_not_there_is_told_with_what_is_nearest(here, capsys, words, code, says):
    assert main(["eval", "runs/tiny", *words]) == code
    assert says in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_silently_replaced_by_another(copy, capsys):
    (copy / "runs/tiny/checkpoints/step_00000006/manifest.json").write_text("{")
    assert main(["eval", "runs/tiny"]) == 3
    err = capsys.readouterr().err
    assert "step 6 is damaged" in err
    assert "There are checkpoints of other steps: 2, 4." in err
    assert answer(capsys, "runs/tiny", "--step", "4")[1]["step"] == 4


def test_without_evaluations_or_a_run_it_says_so(copy, capsys):
    assert main(["train", "mine:without"]) == 0
    assert main(["eval", "runs/none"]) == 2
    assert "Experiment.evaluations is empty" in capsys.readouterr().err
    assert main(["eval", "runs/nowhere"]) == 3
    assert (
        "runs/nowhere cannot be evaluated: there is no runs/nowhere/experiment.json"
        in capsys.readouterr().err
    )


def test_what_others_may_have_written_is_run_when_it_is_named(copy, capsys):
    path = copy / "runs/tiny/experiment.json"
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    assert main(["eval", "runs/tiny"]) == 2
    err = capsys.readouterr().err
    assert "runs/tiny was not evaluated: its experiment.json names the code to run" in err
    assert "meshwright eval runs/tiny mine:experiment" in err
    assert "mine" not in sys.modules
    assert main(["eval", "runs/tiny", "mine:experiment"]) == 0


def test_at_an_address_a_function_runs_only_when_it_is_named(here, memory, at, capsys):
    assert main(["train", "mine:experiment", f"workdir={at}", "max_steps=2"]) == 0
    sys.modules.pop("mine")
    assert main(["eval", at]) == 2
    assert f"meshwright eval {at} mine:experiment" in capsys.readouterr().err
    assert "mine" not in sys.modules
    code, found = answer(capsys, at, "mine:experiment", "--best")
    assert (code, found["checkpoint"]) == (0, f"{at}/checkpoints/step_00000002")


def test_of_a_trainer_s_run_it_names_the_program_and_what_to_call_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    deployer = mw.Deployer(seed=0, mesh="data=-1", workdir="runs/trainer", verbose=False)
    loss = lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean()
    params, examples = {"w": np.zeros((), np.float32)}, {"y": np.ones(16, np.float32)}
    trainer = mw.Trainer(deployer, params=params, loss=loss, optimizer=optax.sgd(0.1))
    save = mw.Save(keep=mw.checkpoints.keep_any(9, mw.checkpoints.best("test/loss", "min")))
    evaluations = {"test": mw.Evaluation("loss", examples)}
    trainer.fit(examples, batch_size=8, epochs=2, evaluations=evaluations, save=save)
    assert main(["eval", "runs/trainer"]) == 3
    err = capsys.readouterr().err
    assert "runs/trainer cannot be evaluated: there is no runs/trainer/experiment.json" in err
    assert "Another program made this run: `python train.py --lr 0.1`" in err
    assert "`trainer.evaluate(mw.Evaluation('loss', examples))`" in err
    assert mw.checkpoints.open_best("runs/trainer").step == 4
    assert main(["inspect", "runs/trainer", "--best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4


def test_inspect_and_convert_take_the_best_too(here, tmp_path, capsys):
    assert main(["inspect", "runs/tiny", "--best", "test/loss:max", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2
    assert main(["convert", "runs/tiny", str(tmp_path / "out"), "--best"]) == 0
    assert mw.checkpoints.open_source(tmp_path / "out").step == 6
    assert main(["inspect", "runs/tiny", "--best", "los"]) == 3
    assert "Did you mean 'test/loss'?" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_score_together_and_one_of_them_prints(here, python, capsys):
    launch = [*python, "-m", "meshwright", "--fake-devices", "2", "launch", "local", "-n", "2", "--"]
    words = ["eval", "runs/tiny", "--best", "--json", "mesh=data=2,fsdp=2", "--fake-devices", "2"]
    environ = {
        name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")
    }
    command = [*launch, *python, "-m", "meshwright", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    lines = by_process(done.stdout).splitlines()
    assert not [line for line in lines if line.startswith("[1]") and "test/loss" in line]
    said = "\n".join(line.removeprefix("[0] ") for line in lines if line.startswith("[0] "))
    # JAX's collectives print lines of their own before, of which the launcher drops whole ones, not parts.
    found = json.loads(said[said.index("{") :])
    assert (found["step"], found["scores"]["test/loss"]) == (6, pytest.approx(reported(6), rel=1e-6))


def test_a_run_in_the_place_of_the_score_is_told_where_to_stand(tmp_path, capsys):
    assert main(["eval", "--best", str(tmp_path)]) == 2
    assert f"Write the directory first: `meshwright eval {tmp_path} --best`." in capsys.readouterr().err
