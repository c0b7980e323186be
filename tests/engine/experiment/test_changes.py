"""A run that is continued with other settings says so, value by value."""

import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.report._run import read_run


def test_a_changed_setting_is_told_value_by_value(tmp_path, capsys):
    mw.run(experiment(tmp_path, max_steps=4))
    mw.run(experiment(tmp_path, max_steps=8, seed=0, logging=mw.Logging(every=2)))
    said = capsys.readouterr().err
    assert "the settings differ from those of the training so far" in said
    assert "max_steps: 4 → 8" in said


def test_the_same_settings_are_not_told(tmp_path, capsys):
    mw.run(experiment(tmp_path, max_steps=4, save=mw.Save(when=2)))
    (tmp_path / "outcome.json").unlink()
    mw.run(experiment(tmp_path, max_steps=4, save=mw.Save(when=2)))
    assert "settings differ" not in capsys.readouterr().err


def test_strict_refuses_changed_settings_and_leaves_the_run_as_it_was(tmp_path):
    mw.run(experiment(tmp_path, max_steps=4))
    before = (tmp_path / "experiment.txt").read_text()
    with pytest.raises(UsageError, match=r"(?s)different settings so far:.*max_steps: 4 → 8"):
        mw.run(experiment(tmp_path, max_steps=8), strict=True)
    assert (tmp_path / "experiment.txt").read_text() == before


def test_each_attempt_keeps_its_settings_and_the_page_shows_what_changed(tmp_path):
    mw.run(experiment(tmp_path, max_steps=4))
    mw.run(experiment(tmp_path, max_steps=8))
    assert sorted(read_run(tmp_path).settings_from) == [0, 4]
    assert "max_steps: 4 → 8" in (tmp_path / "report.html").read_text()


def test_resume_says_how_a_run_of_a_program_of_its_own_goes_on(tmp_path, capsys):
    deployer = mw.Deployer(0, verbose=False, workdir=tmp_path)
    trainer = mw.Trainer(
        deployer,
        params={"w": np.zeros(1, np.float32)},
        loss=lambda params, batch: (params["w"] * batch["x"]).mean(),
        optimizer=optax.sgd(0.1),
    )
    trainer.fit({"x": np.ones(8, np.float32)}, batch_size=8, epochs=1)
    assert main(["resume", str(tmp_path)]) != 0
    assert "To continue, start that program again: `" in capsys.readouterr().err
