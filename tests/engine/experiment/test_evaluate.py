"""An experiment's evaluations by themselves, of any checkpoint of any run."""

import dataclasses
import shutil

import jax
import optax
import pytest

import meshwright as mw
from checkpoints.test_read import flip_a_bit
from engine.experiment.runs import EXAMPLES, experiment, init, measure
from meshwright.errors import CheckpointError, DamagedError, UsageError

FEW = {"x": EXAMPLES["x"][:11]}


def described(folder, **more):
    evaluations = {
        "all": mw.Evaluation(measure, EXAMPLES, when=2, batch_size=16),
        "few": mw.Evaluation(measure, FEW, batch_size=8, outputs=lambda params, batch: {"x": batch["x"]}),
    }
    return experiment(folder, **{"evaluations": evaluations, "max_steps": 4} | more)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with checkpoints of steps 2 and 4, the second of which is the best; not to be changed."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    keep = mw.checkpoints.keep_any(9, mw.checkpoints.best("all/loss", "min"))
    mw.run(described(folder, save=mw.Save(when=2, keep=keep)))
    return folder


def reported(folder, step, name="all/loss"):
    reports = mw.observe.read_jsonl(folder / "metrics.jsonl")
    return next(report[name] for report in reports if report["step"] == step and name in report)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_finished_run_scores_as_it_did_at_its_end_and_nothing_is_written(trained):
    before = files(trained)
    found = mw.evaluate(described(trained))
    assert found == {name: reported(trained, 4, name) for name in ("all/loss", "few/loss")}
    assert files(trained) == before


def test_before_training_it_is_of_the_first_state(tmp_path):
    params = init(jax.random.key(0))
    start = described(tmp_path / "run", init_state_builder=lambda target: {"params/w": params["w"]})
    expected = measure(params, FEW)["loss"].mean()
    assert mw.evaluate(start)["few/loss"] == pytest.approx(float(expected), rel=1e-5)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("checkpoint", "step"), [(2, 2), (4, 4), ("newest", 4), ("best", 4), ("best:all/loss:max", 2), (None, 4)]
)
def test_any_checkpoint_of_any_run_is_evaluated(trained, tmp_path, checkpoint, step):
    before = files(trained)
    elsewhere = described(tmp_path / "none", mesh="fsdp=2,data=4")
    found = mw.engine._internal.evaluate_checkpoint(elsewhere, str(trained), checkpoint)
    assert found.step == step == int(found.state.step)
    assert found.scores["all/loss"] == pytest.approx(reported(trained, step), rel=1e-5)
    assert mw.evaluate(elsewhere, str(trained / "checkpoints"), step) == found.scores
    assert files(trained) == before
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("checkpoint", "says"),
    [
        (3, r"no checkpoint of step 3 in .*\. The nearest is of step 4\.\n  There are: 2, 4\."),
        (90, "The nearest is of step 4"),
        (
            "best:al/loss",
            r"has a score 'al/loss'\. Did you mean 'all/loss'\?(.|\n)*The run keeps its best .* by all",
        ),
        ("best:x", r"Scores of its checkpoints: all/loss"),
    ],
)
def test_what_is_not_there_is_told_with_what_is_nearest(trained, checkpoint, says):
    with pytest.raises(CheckpointError, match=says):
        mw.evaluate(described(trained), checkpoint=checkpoint)


def test_what_is_no_choice_is_told_with_what_is(trained):
    with pytest.raises(UsageError, match=r"checkpoint='bset': expected a step, 'newest', 'best', or"):
        mw.evaluate(described(trained), checkpoint="bset")


def test_a_run_without_checkpoints_is_not_evaluated_as_its_first_state(tmp_path):
    with pytest.raises(CheckpointError, match=f"{tmp_path}/none does not exist"):
        mw.evaluate(described(tmp_path), str(tmp_path / "none"))


def test_of_a_damaged_checkpoint_no_other_is_taken(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    flip_a_bit(tmp_path / "run/checkpoints/step_00000004/manifest.json", 30)
    before = files(tmp_path)
    with pytest.raises(
        DamagedError, match=r"step 4 is damaged(.|\n)*There are checkpoints of other steps: 2\."
    ):
        mw.evaluate(described(tmp_path / "run"))
    assert files(tmp_path) == before
    assert mw.evaluate(described(tmp_path / "run"), checkpoint=2)["all/loss"] == reported(trained, 2)


def test_what_a_training_removes_before_it_is_read_is_chosen_again(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "run")
    restore, removed = mw.Checkpoints.restore, []

    def removing(checkpoints, step, *arguments, **more):
        if not removed:
            removed.append(step)
            shutil.rmtree(tmp_path / f"run/checkpoints/step_{step:08d}")
        return restore(checkpoints, step, *arguments, **more)

    monkeypatch.setattr(mw.Checkpoints, "restore", removing)
    assert mw.evaluate(described(tmp_path / "run"))["all/loss"] == reported(trained, 2)
    assert removed == [4]


def test_while_the_run_trains_its_newest_checkpoint_is_evaluated(tmp_path):
    evaluations, found = {"all": mw.Evaluation(measure, EXAMPLES, when=1, batch_size=16)}, []

    def tracker(step, values):
        if step == 4:  # the save of step 3 has waited for that of step 2
            found.append(mw.engine._internal.evaluate_checkpoint(described(tmp_path, **parts), str(tmp_path)))

    parts = {"evaluations": evaluations, "save": mw.Save(when=1)}
    mw.run(described(tmp_path, **parts, logging=mw.Logging(every=1, trackers=(tracker,))))
    (outcome,) = found
    assert outcome.step in (2, 3)
    assert outcome.scores["all/loss"] == reported(tmp_path, outcome.step)


def test_what_a_run_starts_from_is_evaluated_without_a_checkpoint_of_its_own(tmp_path):
    averaged = {"optimizer": optax.chain(optax.sgd(0.5), mw.training.keep_ema(0.9))}
    first = mw.run(described(tmp_path / "run", save=mw.Save(when=2, keep=9), **averaged))
    at_2 = reported(tmp_path / "run", 2)
    builder = mw.engine.from_checkpoint(str(tmp_path / "run/checkpoints/step_00000002"), ".*")
    other = dataclasses.replace(described(tmp_path / "none", **averaged), init_state_builder=builder)
    assert mw.evaluate(other)["all/loss"] == at_2 != first.scores["all/loss"]
    assert mw.evaluate(described(tmp_path / "run", **averaged), checkpoint=2)["all/loss"] == at_2


def test_checkpoints_in_another_dtype_are_cast_back(tmp_path):
    saving = {"save": mw.Save(when=2, cast="bfloat16")}
    outcome = mw.run(described(tmp_path, **saving))
    assert mw.evaluate(described(tmp_path, **saving)) == pytest.approx(outcome.scores, rel=0.05)


def test_without_evaluations_there_is_nothing_to_do(tmp_path):
    with pytest.raises(UsageError, match=r"^Experiment.evaluations is empty"):
        mw.evaluate(described(tmp_path, evaluations={}))
