"""An experiment's evaluations by themselves."""

import dataclasses

import jax
import optax
import pytest

import meshwright as mw
from experiment.runs import EXAMPLES, experiment, init, measure
from meshwright.errors import UsageError

FEW = {"x": EXAMPLES["x"][:11]}


def described(folder, **more):
    evaluations = {
        "all": mw.Evaluation(measure, EXAMPLES, when=2, batch_size=16),
        "few": mw.Evaluation(measure, FEW, batch_size=8, outputs=lambda params, batch: {"x": batch["x"]}),
    }
    return experiment(folder, **{"evaluations": evaluations, "max_steps": 4} | more)


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_finished_run_scores_as_it_did_at_its_end_and_nothing_is_written(tmp_path):
    outcome = mw.run(described(tmp_path))
    before = files(tmp_path)
    assert mw.evaluate(described(tmp_path)) == outcome.scores
    assert files(tmp_path) == before


def test_before_training_it_is_of_the_first_state(tmp_path):
    params = init(jax.random.key(0))
    start = described(tmp_path / "run", init_state_builder=lambda target: {"params/w": params["w"]})
    expected = measure(params, FEW)["loss"].mean()
    assert mw.evaluate(start)["few/loss"] == pytest.approx(float(expected), rel=1e-5)
    assert not (tmp_path / "run").exists()


def test_another_checkpoint_is_evaluated_as_what_a_run_starts_from(tmp_path):
    averaged = {"optimizer": optax.chain(optax.sgd(0.5), mw.train.keep_ema(0.9))}
    first = mw.run(described(tmp_path / "run", save=mw.Save(when=2, keep=9), **averaged))
    reports = mw.metrics.read_jsonl(tmp_path / "run/metrics.jsonl")
    at_2 = next(report["all/loss"] for report in reports if report["step"] == 2 and "all/loss" in report)
    builder = mw.from_checkpoint(str(tmp_path / "run/checkpoints/step_00000002"), ".*")
    other = dataclasses.replace(described(tmp_path / "none", **averaged), init_state_builder=builder)
    assert mw.evaluate(other)["all/loss"] == at_2 != first.scores["all/loss"]


def test_checkpoints_in_another_dtype_are_cast_back(tmp_path):
    saving = {"save": mw.Save(when=2, cast="bfloat16")}
    outcome = mw.run(described(tmp_path, **saving))
    assert mw.evaluate(described(tmp_path, **saving)) == pytest.approx(outcome.scores, rel=0.05)


def test_without_evaluations_there_is_nothing_to_do(tmp_path):
    with pytest.raises(UsageError, match=r"^Experiment.evaluations is empty"):
        mw.evaluate(described(tmp_path, evaluations={}))
