"""Policies are asked before the first step, too."""

import contextlib

import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, losses, measure
from meshwright.errors import Interrupted


def described(tmp_path, **more):
    evaluations = {
        "all": mw.Evaluation(measure, EXAMPLES, when=mw.engine.any_of(mw.engine.at(0), mw.engine.every(4)))
    }
    return experiment(tmp_path, **{"evaluations": evaluations, "max_steps": 6} | more)


def evaluated(run):
    reports = mw.observe.read_jsonl(run / "metrics.jsonl")
    return [report["step"] for report in reports if "all/loss" in report]


def saved(run):
    return sorted(int(path.name.removeprefix("step_")) for path in run.glob("checkpoints/step_*"))


def test_an_evaluation_that_is_due_at_0_is_of_the_state_before_training(tmp_path):
    mw.run(described(tmp_path))
    mw.run(experiment(tmp_path / "plain", max_steps=6))
    assert evaluated(tmp_path) == [0, 4, 6]
    assert losses(tmp_path) == losses(tmp_path / "plain")


def test_a_save_that_is_due_at_0_holds_the_first_state_and_its_scores(tmp_path):
    saved_then_too = mw.Save(when=mw.engine.when_evaluated("all"), keep=9)
    mw.run(described(tmp_path, save=saved_then_too))
    assert saved(tmp_path) == [0, 4, 6]
    assert mw.Checkpoints(tmp_path / "checkpoints").scores_by_step()[0].keys() == {"all/loss"}


def test_what_was_done_at_0_before_a_restart_is_not_done_again(tmp_path):
    saved_at_0 = mw.Save(when=mw.engine.at(0), keep=9)
    with contextlib.suppress(Interrupted):
        mw.run(described(tmp_path, save=saved_at_0, stop=mw.Stop(max_seconds=1e-9)))
    (tmp_path / "checkpoints/step_00000001").rename(tmp_path / "as if killed before it was saved")
    mw.run(described(tmp_path, save=saved_at_0))
    assert evaluated(tmp_path) == [0, 4, 6]


def test_every_so_many_steps_is_not_before_the_first(tmp_path):
    mw.run(described(tmp_path, evaluations={"all": mw.Evaluation(measure, EXAMPLES, when=2)}))
    assert evaluated(tmp_path) == [2, 4, 6]
    assert saved(tmp_path) == [4, 6]


def test_scores_of_step_0_count_for_the_end(tmp_path):
    def better_than_at_first(scores):
        return bool(scores) and min(scores) == 0 and max(scores) > 0

    outcome = mw.run(described(tmp_path, stop=mw.Stop(early=better_than_at_first)))
    assert outcome.step == 4


def test_scores_may_end_a_run_before_its_first_step(tmp_path):
    outcome = mw.run(described(tmp_path, stop=mw.Stop(early=bool)))
    assert (outcome.step, saved(tmp_path)) == (0, [0])
    assert mw.run(described(tmp_path, stop=mw.Stop(early=bool))).step == 0


def test_a_trainer_s_policies_are_asked_before_the_first_step_of_the_first_call(tmp_path):
    from engine.trainer.runs import by_loss, fit, reports, trainer

    made = trainer(tmp_path)
    when = mw.engine.any_of(mw.engine.at(0), mw.engine.every(4))
    for _ in range(2):
        fit(made, evaluations=by_loss(when=when))
    assert [step for step, _ in reports(tmp_path, "eval/loss")] == [0, 4, 6, 8, 12]


def test_a_policy_sees_the_report_of_its_own_step(tmp_path):
    seen = {}

    def when(step, metrics):
        seen[step] = metrics.get("loss")
        return False

    mw.run(
        described(
            tmp_path,
            evaluations={"all": mw.Evaluation(measure, EXAMPLES, when=when)},
            logging=mw.Logging(every=1),
        )
    )
    reported = dict(losses(tmp_path))
    assert seen == {0: None} | {step: pytest.approx(reported[step]) for step in range(1, 7)}


def test_the_report_and_the_scores_of_a_step_are_one_line(tmp_path):
    above = mw.Evaluation(measure, EXAMPLES, when=lambda step, metrics: step == 2 and metrics["loss"] > 0)
    mw.run(described(tmp_path, evaluations={"all": above}, logging=mw.Logging(every=1)))
    (line,) = (r for r in mw.observe.read_jsonl(tmp_path / "metrics.jsonl") if r["step"] == 2)
    assert {"loss", "all/loss"} <= line.keys()
