"""Checkpoints without the score that the run keeps its best by, and what is never due."""

import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, measure

BEST = mw.checkpoints.best("t/loss", "min")


def warnings(run, caplog, save, when, max_steps=21):
    evaluations = {"t": mw.Evaluation(measure, EXAMPLES, when=when)}
    mw.run(experiment(run, evaluations=evaluations, save=save, max_steps=max_steps))
    return [said for said in caplog.messages if "will have no score" in said]


def test_saves_that_evaluations_miss_are_a_warning_with_what_to_write(tmp_path, caplog):
    caplog.set_level("INFO", "meshwright")
    [said] = warnings(tmp_path, caplog, mw.Save(when=2, keep=BEST), 7)
    assert "save.when=2 and evaluations.t.when=7: 9 of the first 10 checkpoints will have no" in said
    assert said.endswith("save.when=mw.engine.when_evaluated('t')")


@pytest.mark.parametrize(
    ("save", "when"),
    [
        (mw.Save(when=4, keep=BEST), 2),
        (mw.Save(when=mw.engine.when_evaluated("t"), keep=BEST), 7),
        (mw.Save(when=2, keep=mw.checkpoints.best("t/loss", "min", without_metric="drop")), 7),
        (mw.Save(when=2, keep=2), 7),
        (mw.Save(when=10, keep=BEST), 7),
    ],
    ids=["each is evaluated", "by the evaluation", "dropped", "by no score", "few"],
)
@pytest.mark.daily(2)
def test_saves_that_are_scored_or_not_kept_are_no_warning(tmp_path, caplog, save, when):
    caplog.set_level("INFO", "meshwright")
    assert not warnings(tmp_path, caplog, save, when)


def test_what_is_asked_for_after_the_end_of_a_run_is_a_warning(tmp_path, caplog):
    caplog.set_level("INFO", "meshwright")
    never, last = (mw.Evaluation(measure, EXAMPLES, when=9, at_end=at_end) for at_end in (False, True))
    profile = mw.Profile(steps=(1, 9, 50), num_steps=1, processes=(3,))
    mw.run(experiment(tmp_path, evaluations={"never": never, "last": last}, profile=profile, max_steps=8))
    profiled, on, evaluated = (line for line in caplog.messages if line.startswith(("! profile", "! eval")))
    assert profiled == "! profile.steps: the run ends after step 8, so it does not profile 9, 50"
    assert on == "! profile.processes=(3,): the run has 1, so none of them is profiled"
    assert evaluated.startswith(
        "! evaluations.never.when=9, at_end=False: the run ends after step 8, so it never"
    )
