"""What a run writes down of its end."""

import json

import jax.numpy as jnp
import pytest

import meshwright as mw
from experiment.runs import EXAMPLES, experiment, loss, measure
from meshwright import report
from meshwright.errors import DivergedError, Interrupted, UsageError


def outcome(run):
    return json.loads((run / "outcome.json").read_text())


def test_a_run_that_is_done_says_so_and_has_a_page(tmp_path):
    evaler = mw.Evaler(measure, EXAMPLES)
    found = mw.run(experiment(tmp_path, evalers={"all": evaler}))
    told = {"ended": "finished", "step": 10, "scores": {"all/loss": found.scores["all/loss"]}}
    assert outcome(tmp_path) == told | {"seconds": found.seconds}
    assert "finished" in (tmp_path / "report.html").read_text()


def test_a_run_that_is_stopped_says_so_and_its_page_has_the_checkpoint(tmp_path):
    with pytest.raises(Interrupted):
        mw.run(experiment(tmp_path, max_seconds=0, log_every=3))
    assert outcome(tmp_path)["ended"] == "stopped"
    page = (tmp_path / "report.html").read_text()
    assert "stopped after step 3: max_seconds is over" in page
    assert "Checkpoints that are there" in page


def test_a_run_that_diverges_says_at_what_and_its_page_has_the_nan(tmp_path):
    with pytest.raises(DivergedError):
        mw.run(experiment(tmp_path, loss=lambda params, batch, key: loss(params, batch, key) * jnp.nan))
    assert outcome(tmp_path)["ended"] == "diverged"
    assert "the loss reported at step" in outcome(tmp_path)["message"]
    assert "not finite at step" in (tmp_path / "report.html").read_text()


def test_a_run_that_fails_says_by_what(tmp_path, monkeypatch):
    def broken(step, values):
        if "loss" in values:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        mw.run(experiment(tmp_path, trackers=(broken,)))
    assert (outcome(tmp_path)["ended"], outcome(tmp_path)["message"]) == ("failed", "OSError: no space left")


def test_a_start_that_is_refused_leaves_what_was_written_of_the_run_before(tmp_path):
    mw.run(experiment(tmp_path))
    before = outcome(tmp_path)
    with pytest.raises(UsageError):
        mw.run(experiment(tmp_path, max_step=20, mesh="data=3"))
    assert outcome(tmp_path) == before


def test_a_page_that_cannot_be_made_does_not_fail_the_run(tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    assert mw.run(experiment(tmp_path)).step == 10
    assert "could not be written down whole" in caplog.text
    assert report.read_run(tmp_path).ending.state == "finished"


def test_the_end_of_a_run_does_not_wait_for_a_page_that_takes_long(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("meshwright.experiment._record.LARGEST_METRICS_NBYTES", 100)
    mw.run(experiment(tmp_path))
    assert not (tmp_path / "report.html").exists()
    assert f"`meshwright report {tmp_path}` does" in caplog.text
