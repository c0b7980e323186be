"""The experiment of `examples/source_code.py` at small size: killed, continued, and built upon."""

import dataclasses
import importlib
import random
import signal
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from end_to_end.running import Shell, final_arrays, kill, losses, reached, wait_for
from meshwright.base import _tree as tree
from meshwright.observe._jsonl import read_jsonl

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 40
SMALL = (
    *(
        f"steps={STEPS}",
        "layers=1",
        "length=64",
        "batch_size=8",
        "evaluated=8192",
        "logging.every=1",
        "save.when=10",
    ),
    *("evaluations.held_out.when=10", "evaluations.train.when=25"),
)


@pytest.fixture(scope="module")
def program(python, tmp_path_factory):
    return Shell(python, tmp_path_factory.mktemp("source_code"), EXAMPLES / "source_code.py")


@pytest.fixture(scope="module")
def whole(program):
    """A run that nobody disturbed."""
    done = program("workdir=whole", *SMALL)
    assert done.returncode == 0, done.stderr
    return program.folder / "whole"


@pytest.fixture(scope="module")
def killed(program):
    """A run that was killed at a random step, and then left to end."""
    run = program.folder / "killed"
    child = program.start("workdir=killed", *SMALL)
    wait_for(reached(run, random.randint(5, 30)), child)
    kill(child)
    assert child.returncode == -signal.SIGKILL
    done = program("workdir=killed", *SMALL)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="module")
def finetuning():
    """The module of the example that fine-tunes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("finetune_source_code")


def scores(run, name):
    return {report["step"]: report[name] for report in read_jsonl(run / "metrics.jsonl") if name in report}


def test_it_learns_and_evaluates_two_texts_each_in_its_own_time(whole):
    held_out = scores(whole, "held_out/bits_per_byte")
    assert sorted(held_out) == [10, 20, 30, 40]
    assert sorted(scores(whole, "train/loss")) == [25, 40]
    assert held_out[40] < held_out[10] - 0.5


def test_killed_it_reports_and_ends_as_if_nobody_had(killed, whole):
    assert losses(killed) == losses(whole)
    assert len(losses(whole)) == STEPS
    for name in ("held_out/loss", "train/bits_per_byte", "skipped"):
        assert scores(killed, name) == scores(whole, name)
    assert final_arrays(killed) == final_arrays(whole)


def test_the_best_by_what_is_held_out_is_kept_beside_the_newest_two(whole):
    held_out = scores(whole, "held_out/loss")
    best = mw.checkpoints.open_best(whole / "checkpoints", "held_out/loss", "min")
    assert best.step == min(held_out, key=held_out.get)
    kept = {int(path.name.removeprefix("step_")) for path in (whole / "checkpoints").glob("step_*")}
    assert kept == {30, 40, best.step}


def test_fine_tuning_starts_from_the_averages_below_the_head(whole, finetuning):
    made = finetuning.experiment(base=str(whole), layers=1)
    target = mw.training.abstract_state(made.model, made.optimizer, mw.Layout(mw.make_mesh("data=-1")))
    given = made.init_state_builder(target)
    assert given.keys() == tree.named_leaves({"params": target.params}).keys() - {"params/head"}
    saved = mw.checkpoints.open_best(whole / "checkpoints", "held_out/loss", "min").arrays()
    for name, x in given.items():
        average = saved[f"opt_state/1/ema/{name.removeprefix('params/')}"]
        np.testing.assert_array_equal(x, np.asarray(average))


def test_fine_tuning_learns(whole, finetuning, tmp_path):
    made = finetuning.experiment(str(tmp_path), str(whole), steps=30, layers=1, length=64)
    few = {name: x[::20] for name, x in made.evaluations["held_out"].examples.items()}
    evaluation = dataclasses.replace(made.evaluations["held_out"], examples=few)
    outcome = mw.run(dataclasses.replace(made, evaluations={"held_out": evaluation}))
    first, *_, last = scores(tmp_path, "loss").values()
    assert last < 0.8 * first
    assert outcome.scores["held_out/accuracy"] > 1 / 8
