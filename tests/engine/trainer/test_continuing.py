"""A trainer's run goes back, or refuses changed settings, as that of an experiment."""

import pytest

import meshwright as mw
from engine.trainer.runs import arrays, by_loss, fit, reports, saved, trainer
from meshwright.errors import UsageError

RUN = {"epochs": 2, "save": mw.Save(when=2, keep=9), "logging": mw.Logging(every=1)}


def test_fit_goes_back_to_a_step_and_comes_to_the_same_bits(tmp_path):
    undisturbed = trainer(tmp_path)
    fit(undisturbed, **RUN)
    before = reports(tmp_path)
    again = trainer(tmp_path)
    fit(again, **RUN, from_step=2)
    assert arrays(again) == arrays(undisturbed)
    assert reports(tmp_path) == before
    assert [path.name[:13] for path in sorted((tmp_path / "checkpoints").glob("*.later-*"))] == [
        "step_00000004",
        "step_00000006",
    ]


def test_fit_names_the_steps_that_there_are(tmp_path):
    fit(trainer(tmp_path), **RUN)
    with pytest.raises(UsageError, match=r"from_step=3: .*\n  There are checkpoints of: 0, 2, 4, 6\."):
        fit(trainer(tmp_path), **RUN, from_step=3)
    assert saved(tmp_path) == [0, 2, 4, 6]


def test_without_a_workdir_there_is_no_way_back():
    with pytest.raises(UsageError, match="from_step=3: this training saves no checkpoints"):
        fit(trainer(), epochs=1, from_step=3)


def test_without_a_workdir_there_is_nothing_to_compare_with():
    with pytest.raises(UsageError, match=r"strict=True.* give Deployer\(workdir="):
        fit(trainer(), epochs=1, strict=True)


def test_a_step_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"Fit\.from_step is '2'; it must be int or none"):
        fit(trainer(tmp_path), **RUN, from_step="2")


def test_a_strict_fit_refuses_changed_settings_and_leaves_the_run_as_it_was(tmp_path):
    fit(trainer(tmp_path), **RUN)
    before = (tmp_path / "experiment.txt").read_text()
    with pytest.raises(UsageError, match=r"(?s)different settings so far:.*fit.epochs: 2 → 3"):
        fit(trainer(tmp_path), **RUN | {"epochs": 3}, strict=True)
    assert (tmp_path / "experiment.txt").read_text() == before
    assert saved(tmp_path) == [0, 2, 4, 6]


def test_a_strict_fit_with_the_same_settings_goes_on(tmp_path):
    fit(trainer(tmp_path), **RUN)
    made = trainer(tmp_path)
    fit(made, **RUN, strict=True)
    assert made.step == 6


def test_the_last_checkpoint_of_a_fit_that_scores_end_has_the_last_scores(tmp_path):
    stop = mw.Stop(early=lambda scores: max(scores, default=0) >= 4)
    scores = fit(trainer(tmp_path), evaluations=by_loss(when=2), save=mw.Save(when=2), epochs=4, stop=stop)
    found = mw.Checkpoints(tmp_path / "checkpoints").scores()
    assert found["eval/loss"] == scores["eval/loss"]
