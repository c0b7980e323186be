"""A run that was stopped, in any way, ends with the bits of one that was not."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import meshwright as mw
from engine.trainer.runs import EXAMPLES, arrays, by_loss, deployer, fit, reports, saved, trainer
from meshwright.errors import DivergedError, InputError, Interrupted, UsageError

RUN = {"epochs": 4, "logging": mw.Logging(every=1), "evaluations": by_loss()}
"""Four epochs of three steps."""
SAVED = RUN | {"save": mw.Save(when=2, keep=1)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """All arrays of a run that nobody disturbed, and all that it reported."""
    folder = tmp_path_factory.mktemp("undisturbed")
    made = trainer(folder)
    fit(made, **SAVED)
    return arrays(made), reports(folder), reports(folder, "eval/loss")


def everything(made, folder):
    return arrays(made), reports(folder), reports(folder, "eval/loss")


def at(step, act):
    """A tracker that does something when a step is reported, where a real run would be hit."""
    return lambda reported, values: act() if reported == step and "loss" in values else None


class Crash(BaseException):
    """What ends a run in a tracker, which is put aside when it raises an `Exception`."""


def crash():
    raise Crash


def sigterm():
    signal.raise_signal(signal.SIGTERM)


def stopped(folder, step, act, error, **options):
    """A trainer whose run was hit in the turn of a step."""
    made = trainer(given=deployer(folder, trackers=[at(step, act)]))
    with pytest.raises(error):
        fit(made, **options or (SAVED if folder else RUN))
    return made


@pytest.mark.slow
def test_interrupted_in_the_middle_of_an_epoch(tmp_path, undisturbed):
    first = stopped(tmp_path, 5, sigterm, Interrupted)
    assert (first.step, saved(tmp_path)) == (5, [5])
    second = trainer(tmp_path)
    fit(second, **SAVED)
    assert everything(second, tmp_path) == undisturbed


@pytest.mark.slow
def test_killed_with_its_newest_steps_in_memory_only(tmp_path, undisturbed):
    folder, root = tmp_path / "run", tmp_path / "memory"
    root.mkdir()
    memory = mw.checkpoints.InMemory(every=2, budget_nbytes=1 << 20, directory=str(root))
    options = RUN | {"save": mw.Save(when=1000, memory=memory)}
    stopped(folder, 9, crash, Crash, **options)
    newest = max(int(path.name.removeprefix("step_")) for path in root.glob("*/step_*"))
    assert saved(folder) == [0]
    assert newest >= 2
    logged = []
    tracker = lambda step, values: logged.append(step) if "loss" in values else None
    second = trainer(given=deployer(folder, trackers=[tracker]))
    fit(second, **options)
    assert min(logged) == newest + 1
    assert everything(second, folder) == undisturbed
    assert list(root.iterdir()) == []


def test_two_runs_cannot_share_a_workdir_nor_an_experiment_s_directory(tmp_path):
    def start_another():
        (before,) = reports(tmp_path)[-1:]
        with pytest.raises(UsageError, match=f"{tmp_path} is already in use by process {os.getpid()} on "):
            fit(trainer(tmp_path), **SAVED)
        assert reports(tmp_path)[-1] == before
        refused.append(before)

    refused = []
    fit(trainer(given=deployer(tmp_path, trackers=[at(5, start_another)])), **SAVED)
    assert refused
    with contextlib.ExitStack() as opened:
        mw.processes._internal.lock_run_directory(
            tmp_path, opened
        )  # as `mw.run` does, wherever its checkpoints are
        with pytest.raises(UsageError, match="is already in use"):
            fit(trainer(tmp_path), **SAVED)


@pytest.mark.slow
def test_crashed_between_two_saves(tmp_path, undisturbed):
    stopped(tmp_path, 9, crash, Crash)
    assert saved(tmp_path) == [8]
    second = trainer(tmp_path)
    fit(second, **SAVED)
    assert everything(second, tmp_path) == undisturbed


def test_crashed_before_anything_was_saved_but_the_first_state(tmp_path, undisturbed):
    stopped(tmp_path, 2, crash, Crash, **RUN, save=mw.Save(when=5))
    assert saved(tmp_path) == [0]
    second = trainer(tmp_path)
    fit(second, **SAVED)
    assert everything(second, tmp_path) == undisturbed


def test_killed_without_warning(python, tmp_path, undisturbed):
    program = (
        "import os, signal\n"
        "from engine.trainer.runs import deployer, fit, trainer\n"
        "from engine.trainer.test_resume import SAVED, at\n"
        "kill = at(8, lambda: os.kill(os.getpid(), signal.SIGKILL))\n"
        f"fit(trainer(given=deployer({str(tmp_path)!r}, trackers=[kill])), **SAVED)\n"
    )
    tests = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path])}
    killed = subprocess.run([*python, "-c", program], env=environ, capture_output=True, timeout=400)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    made = trainer(tmp_path)
    fit(made, **SAVED)
    assert everything(made, tmp_path) == undisturbed


def test_without_a_workdir_a_trainer_stays_at_its_last_whole_step(undisturbed):
    made = stopped(None, 5, sigterm, Interrupted)
    fit(made, **RUN)
    assert arrays(made) == undisturbed[0]


def test_an_error_of_the_users_leaves_the_state_of_the_last_whole_step(undisturbed):
    calls = []

    def collate(examples):
        calls.append(1)
        if len(calls) == 9:
            raise OSError("no such file")
        return jax.tree.map(lambda *x: list(x), *examples)

    made = trainer(collate=collate)
    with pytest.raises(OSError, match="no such file"):
        fit(made, epochs=4)
    assert 4 <= made.step <= 8
    fit(made, epochs=4)
    assert arrays(made) == undisturbed[0]


def test_a_run_that_is_done_says_so_and_tells_its_scores_again(tmp_path, undisturbed, monkeypatch):
    scores = fit(trainer(tmp_path), **SAVED)
    again, said = trainer(tmp_path), []
    monkeypatch.setattr(again.deployer, "log_info", lambda info, *_: said.append(info))
    assert fit(again, **SAVED) == scores
    assert said[-1].startswith("already at step 12: epochs=4 asks for no more steps. To train more, ")
    assert everything(again, tmp_path) == undisturbed


def test_a_run_that_is_done_can_be_told_to_go_further(tmp_path, undisturbed):
    fit(trainer(tmp_path), **SAVED | {"epochs": 2})
    made = trainer(tmp_path)
    fit(made, **SAVED)
    assert everything(made, tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp=4,tensor=2"])
def test_another_mesh_goes_on_with_a_run(tmp_path, undisturbed, mesh):
    stopped(tmp_path, 5, sigterm, Interrupted)
    fit(trainer(tmp_path, mesh, rules=(mw.parallel.match("w", "tensor"),)), **SAVED)
    losses = [loss for _, loss in reports(tmp_path)]
    assert losses == pytest.approx([loss for _, loss in undisturbed[1]], rel=1e-5)


def test_other_data_than_before_is_refused(tmp_path):
    fit(trainer(tmp_path))
    fewer = {name: x[:40] for name, x in EXAMPLES.items()}
    with pytest.raises(InputError, match="num_examples was 50, is 40"):
        fit(trainer(tmp_path), fewer)


def test_after_a_divergence_fit_goes_back_to_the_newest_checkpoint(tmp_path):
    def loss(params, batch):
        return params["w"].sum() * batch["x"].mean() * (float("nan") if made_bad else 1.0)

    made_bad = True
    with pytest.raises(DivergedError):
        fit(trainer(tmp_path, loss=loss), logging=mw.Logging(every=1), save=mw.Save(when=1))
    made_bad = False
    mended = trainer(tmp_path, loss=loss)
    fit(mended)
    assert mended.step == 6
    assert reports(tmp_path)[0][0] == 3
