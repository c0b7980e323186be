"""`meshwright show`, and settings from files."""

import json
import shlex
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.cli._settings import read_settings
from meshwright.errors import OverrideError

EXAMPLES = {"x": np.ones((16, 4), np.float32)}


def init(key, width):
    return {"w": jax.random.normal(key, (4, width))}


def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).mean(-1)}


def loss(params, batch, key):
    return measure(params, batch)["loss"].mean()


def tiny(workdir: str = "runs/tiny", width: int = 2, learning_rate: float = 0.1) -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: init(key, width),
        loss=loss,
        optimizer=optax.sgd(learning_rate),
        input=mw.Input(EXAMPLES, batch_size=8),
        max_steps=2,
        evaluations={"test": mw.Evaluation(measure, EXAMPLES, when=2, batch_size=8)},
    )


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Return what a command answers, as `(exit code, stdout, stderr)`; `tiny:tiny` is the function above."""
    monkeypatch.setitem(sys.modules, "tiny", sys.modules[__name__])
    monkeypatch.chdir(tmp_path)

    def answer(*words):
        code = main(list(words))
        return code, *capsys.readouterr()

    return answer


def test_an_experiment_is_shown_and_nothing_of_it_is_run(call, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("asked for devices"))
    code, out, _ = call("show", "tiny:tiny", "width=64", "evaluations.test.when=7")
    assert code == 0
    assert f"model = {__name__}.tiny.<lambda>(width=64)" in out.splitlines()
    assert "evaluations.test.when = 7" in out.splitlines()
    assert not list(tmp_path.iterdir())


def test_json_has_the_values_by_path(call):
    code, out, _ = call("show", "tiny:tiny", "--json")
    assert (code, json.loads(out)["input.batch_size"]) == (0, "8")


def test_it_is_compared_with_another(call):
    assert call("show", "tiny:tiny", "--against", "tiny:tiny")[0] == 0
    code, out, _ = call("show", "tiny:tiny", "learning_rate=0.5", "--against", "tiny:tiny")
    assert code == 1
    assert "  optimizer.1.tx.step_size: -0.1 → -0.5\n1 values differ" in out
    found = json.loads(call("show", "tiny:tiny", "width=3", "--against=tiny:tiny", "--json")[1])
    assert found["different"] == {"model.width": {"a": "2", "b": "3"}}


def test_it_is_compared_with_what_a_run_was(call):
    assert call("train", "tiny:tiny", "width=3")[0] == 0
    assert call("show", "tiny:tiny", "width=3", "--against", "runs/tiny")[0] == 0
    code, out, _ = call("show", "tiny:tiny", "--against", "runs/tiny/experiment.txt")
    assert (code, "  model.width: 3 → 2\n" in out) == (1, True)


def test_what_cannot_be_compared_with_is_told(call, tmp_path):
    code, _, err = call("show", "tiny:tiny", "--against", str(tmp_path))
    assert code == 3
    assert f"--against {tmp_path} cannot be read: there is no {tmp_path}/experiment.txt" in err


def test_settings_come_from_files_and_the_command_line_wins(call, tmp_path):
    (tmp_path / "one.yaml").write_text("learning_rate: 1e-3\nmax_steps: 5\nevaluations:\n  test: {when: 9}\n")
    (tmp_path / "two.yaml").write_text("max_steps: 6\ninput.epochs: null\n")
    words = ["--settings", "one.yaml", "--settings=two.yaml", "max_steps=7"]
    _, out, _ = call("show", "tiny:tiny", *words)
    assert {"max_steps = 7", "evaluations.test.when = 9", "input.epochs = None"} <= set(out.splitlines())
    assert "optimizer.1.tx = optax.scale(step_size=-0.001)" in out.splitlines()


def test_a_run_continues_without_the_file_of_its_settings(call, tmp_path):
    (tmp_path / "settings.yaml").write_text("width: 3\nlogging.every: 1\n")
    assert call("train", "tiny:tiny", "--settings", "settings.yaml")[0] == 0
    (tmp_path / "settings.yaml").unlink()
    assert call("resume", "runs/tiny", "max_steps=3")[0] == 0
    assert mw.checkpoints.open_source("runs/tiny/checkpoints").arrays()["params/w"].shape == (4, 3)


def test_values_of_yaml_are_the_texts_of_the_command_line(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "rate: 1e-4\nmesh: data=-1,fsdp=4\nsteps:\n- 100\n- 200\nsave.cast: 'bfloat16'\n"
        "deep: {a: {b: ~}, c: {}}\nrules: [['q|k', 1e-3]]\n"
    )
    assert read_settings(tmp_path / "s.yaml") == {
        "rate": "1e-4",
        "mesh": "data=-1,fsdp=4",
        "steps": "[100, 200]",
        "save.cast": "bfloat16",
        "deep.a.b": "none",
        "deep.c": "{}",
        "rules": "[['q|k', 1e-3]]",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1, 2\nc: 3", r"s\.yaml, line 3: this is not valid YAML: expected .*\n    c: 3$"),
        ("- 1\n- 2", "line 1: expected settings, one `key: value` per line"),
        ("a: {b: 1}\nc: 2\na.b: 3", "line 3: a.b is set twice, first in line 1"),
        ("a: 1\n\0", "line 2: this is not valid YAML: special characters are not allowed"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused_with_the_line(tmp_path, text, says):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(OverrideError, match=says):
        read_settings(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("evaluations: {tset: {when: 3}}", "unknown setting 'evaluations.tset'. Did you mean 'test'?"),
        ("evaluations: {test: {wehn: 3}}", "unknown setting 'evaluations.test.wehn'. Did you mean 'when'?"),
        ("lr: 0.1", "unknown setting 'lr'. Did you mean 'learning_rate'?"),
        ("early_stopping: 3", "unknown setting 'early_stopping'. In Python: Write stop=mw.Stop(early="),
        ("input: {batch_size: many}", "input.batch_size=many: expected int, found 'many'"),
        (
            "evaluations: {test: {when: 0}}",
            "evaluations.test.when=0: Evaluation.when is 0; it must be at least 1",
        ),
    ],
)
def test_a_wrong_setting_of_a_file_is_told_by_its_path_before_anything_starts(call, tmp_path, text, says):
    (tmp_path / "s.yaml").write_text(f"# all of them\n{text}")
    code, _, err = call("train", "tiny:tiny", "--settings", "s.yaml")
    assert (code, says in err) == (2, True)
    assert "It was set in s.yaml, line 2." in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_from_a_shell_a_wrong_file_is_refused_and_a_reader_may_leave_early(python, tmp_path):
    (tmp_path / "s.yaml").write_text("learning_rate: 1e-3\nlayers: 4\n")
    meshwright, target = f"{shlex.join(python)} -m meshwright", "meshwright.cli.demo.digits:experiment"
    script = (
        f"{meshwright} train {target} --settings s.yaml; echo $? >&2; {meshwright} show {target} | head -1"
    )
    done = subprocess.run(script, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert "unknown setting 'layers'" in done.stderr
    assert done.stderr.endswith("\n2\n")
    assert done.stdout == "workdir = 'runs/digits'\n"
