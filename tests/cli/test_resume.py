"""Whose functions `resume` runs, and what of their settings is kept."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from meshwright.cli import main

MODULE = """
import numpy as np, optax, pydantic
import meshwright as mw

EXAMPLES = {"x": np.ones((16, 4), np.float32)}

def init(key):
    return {"w": np.ones((4, 2), np.float32)}

def loss(params, batch, key):
    return ((batch["x"] @ params["w"]) ** 2).mean()

def closing_over(token):
    return lambda params, batch, key: loss(params, batch, key) + 0 * len(token)

def experiment(workdir="runs/tiny", max_steps=2):
    return mw.Experiment(workdir=workdir, model=init, loss=loss, optimizer=optax.sgd(0.1),
                         input=mw.Input(EXAMPLES, batch_size=8), max_steps=max_steps,
                         compile=mw.Compile(cache=False))

def elsewhere(workdir: str = "runs/tiny", max_steps: int = 2) -> mw.Experiment:
    return experiment(workdir, max_steps)

def secretive(token: pydantic.SecretStr, workdir: str = "runs/tiny", max_steps: int = 2) -> mw.Experiment:
    made = experiment(workdir, max_steps)
    import dataclasses
    return dataclasses.replace(made, loss=closing_over(token.get_secret_value()))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with `mine.py`, which is the current directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path / "here"
    sys.modules.pop("mine", None)


def started_from(run, target, settings):
    run.mkdir(parents=True, exist_ok=True)
    origin = {"target": target, "settings": settings, "fake_devices": None}
    (run / "experiment.json").write_text(json.dumps(origin))


def test_a_run_of_mine_goes_on_without_being_named(here, capsys):
    assert main(["train", "mine:experiment"]) == 0
    assert main(["resume", "runs/tiny", "max_steps=3"]) == 0
    assert "done: step 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    "target", ["subprocess:getoutput", "os:system", "optax:sgd", "runs.tiny.evil:experiment"]
)
def test_a_function_that_came_with_a_run_or_makes_no_experiment_is_not_called(here, capsys, target):
    started_from(here / "runs/tiny", target, {"cmd": f"touch {here}/PWNED", "learning_rate": "1"})
    for name in ("__init__.py", "evil.py"):
        (here / "runs/tiny" / name).write_text("open('PWNED', 'w')")
    assert main(["resume", "runs/tiny"]) == 2
    err = capsys.readouterr().err
    assert f"meshwright resume runs/tiny {target}" in err
    assert "learning_rate=1" in err
    assert not (here / "PWNED").exists()
    assert target.split(":")[0] == "optax" or "runs.tiny.evil" not in sys.modules


@pytest.mark.parametrize("path", ["runs/tiny", "runs/tiny/experiment.json"])
def test_what_others_may_have_written_is_run_when_it_is_named(here, capsys, path):
    started_from(here / "runs/tiny", "mine:experiment", {})
    Path(path).chmod(Path(path).stat().st_mode | stat.S_IWOTH)
    assert main(["resume", "runs/tiny"]) == 2
    assert f"other users can write to {path}" in capsys.readouterr().err
    assert "mine" not in sys.modules
    assert main(["resume", "runs/tiny", "mine:elsewhere"]) == 2
    assert "runs/tiny was started from mine:experiment, not from mine:elsewhere" in capsys.readouterr().err
    assert main(["resume", "runs/tiny", "mine:experiment"]) == 0


def test_a_function_from_elsewhere_says_that_it_makes_an_experiment(here, tmp_path, capsys, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    monkeypatch.syspath_prepend(str(here))
    started_from(tmp_path / "there/runs/tiny", "mine:experiment", {})
    assert main(["resume", "runs/tiny"]) == 2
    assert "not annotated to return an mw.Experiment" in capsys.readouterr().err
    started_from(tmp_path / "there/runs/tiny", "mine:elsewhere", {})
    assert main(["resume", "runs/tiny"]) == 0


def test_at_an_address_a_function_runs_only_when_it_is_named(here, memory, at, capsys):
    assert main(["train", "mine:elsewhere", f"workdir={at}"]) == 0
    assert main(["resume", at, "max_steps=3"]) == 2
    assert f"meshwright resume {at} mine:elsewhere" in capsys.readouterr().err
    assert main(["resume", at, "mine:elsewhere", "max_steps=3"]) == 0
    assert "done: step 3" in capsys.readouterr().out


def test_a_secret_is_written_nowhere_and_asked_for_again(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["meshwright", "train", "mine:secretive", "token=hunter2secret"])
    assert main() == 0
    holding = [
        path for path in (here / "runs").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()
    ]
    assert not holding
    assert json.loads((here / "runs/tiny/experiment.json").read_text())["settings"]["token"] == "*" * 10
    assert "token=**********" in json.loads((here / "runs/tiny/environment.json").read_text())["command"]
    assert main(["resume", "runs/tiny", "max_steps=3"]) == 2
    said = capsys.readouterr().err
    assert "token is a secret, and runs do not store secrets. Give it again: token=VALUE" in said
    assert main(["resume", "runs/tiny", "max_steps=3", "token=hunter2secret"]) == 0


def test_the_probe_of_a_run_directory_follows_no_link(here):
    (here / "precious.txt").write_text("precious")
    (here / "runs/tiny").mkdir(parents=True)
    (here / "runs/tiny/.probe-0").symlink_to(here / "precious.txt")
    assert main(["train", "mine:experiment"]) == 0
    assert (here / "precious.txt").read_text() == "precious"


def test_a_probe_that_a_killed_run_left_is_removed(here):
    (here / "runs/tiny/checkpoints").mkdir(parents=True)
    (here / "runs/tiny/checkpoints/.probe-0123abcd").touch()
    assert main(["train", "mine:experiment"]) == 0
    assert not list((here / "runs/tiny/checkpoints").glob(".probe-*"))


@pytest.mark.parametrize(
    "name", ["experiment.txt", "metrics.jsonl", "outcome.json", "logs/process-00000.log"]
)
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_run_writes_through_no_link_and_waits_for_no_pipe(here, capsys, name, kind):
    (here / "precious.txt").write_text("precious")
    (here / "runs/tiny/logs").mkdir(parents=True)
    path = here / "runs/tiny" / name
    precious = here / "precious.txt"
    make = {"link": lambda: path.symlink_to(precious), "pipe": lambda: os.mkfifo(path)}
    make.get(kind, path.mkdir)()
    assert main(["train", "mine:experiment"]) == 2
    assert f"{name} is a link or not an ordinary file" in capsys.readouterr().err
    assert (here / "precious.txt").read_text() == "precious"
