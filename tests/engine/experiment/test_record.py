"""What a run writes down of its end."""

import json
import logging

import jax.numpy as jnp
import pytest

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, loss, losses, measure
from meshwright.engine._reports import line_printer
from meshwright.errors import DivergedError, Interrupted, UsageError
from meshwright.report import _internal as report


def outcome(run):
    return json.loads((run / "outcome.json").read_text())


def test_a_run_that_is_done_says_so_and_has_a_page(tmp_path):
    evaluation = mw.Evaluation(measure, EXAMPLES)
    found = mw.run(experiment(tmp_path, evaluations={"all": evaluation}))
    told = {"ended": "finished", "step": 10, "scores": {"all/loss": found.scores["all/loss"]}}
    assert outcome(tmp_path) == told | {"seconds": found.seconds}
    assert "finished" in (tmp_path / "report.html").read_text()


def test_a_run_that_is_stopped_says_so_and_its_page_has_the_checkpoint(tmp_path):
    with pytest.raises(Interrupted):
        mw.run(experiment(tmp_path, stop=mw.Stop(max_seconds=0), logging=mw.Logging(every=3)))
    assert outcome(tmp_path)["ended"] == "stopped"
    page = (tmp_path / "report.html").read_text()
    assert "stopped after step 1: max_seconds is over" in page
    assert "Existing checkpoints" in page


def test_a_run_that_diverges_says_at_what_and_its_page_has_the_nan(tmp_path):
    with pytest.raises(DivergedError):
        mw.run(experiment(tmp_path, loss=lambda params, batch, key: loss(params, batch, key) * jnp.nan))
    assert outcome(tmp_path)["ended"] == "diverged"
    assert "the loss reported at step" in outcome(tmp_path)["message"]
    assert "not finite at step" in (tmp_path / "report.html").read_text()


def test_a_run_that_fails_says_by_what(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("no space left")

    monkeypatch.setattr(mw.observe._internal.TensorBoard, "__call__", broken)  # a file of the run's own
    with pytest.raises(OSError, match="no space left"):
        mw.run(experiment(tmp_path))
    assert (outcome(tmp_path)["ended"], outcome(tmp_path)["message"]) == ("failed", "OSError: no space left")


def test_a_tracker_that_fails_is_told_of_on_the_screen_and_in_the_log_and_the_run_goes_on(tmp_path, capsys):
    def down(step, values):
        raise ConnectionError("the server is gone")

    def emptying(step, values):
        values.clear()

    seen = []
    trackers = (down, emptying, lambda step, values: seen.append(values.get("loss")))
    assert mw.run(experiment(tmp_path / "run", logging=mw.Logging(every=5, trackers=trackers))).step == 10
    assert None not in seen[1:]
    mw.run(experiment(tmp_path / "plain"))
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")
    log = (tmp_path / "run/logs/process-00000.log").read_text()
    for output in (capsys.readouterr().err, log):
        assert output.count("down failed at the report of step 0; the run continues without it") == 1
        assert "ConnectionError: the server is gone" in output
    assert "Traceback" in log


def test_a_tracker_that_is_not_installed_ends_the_run_before_its_first_step(tmp_path, monkeypatch):
    def absent():
        raise UsageError("absent is not installed")

    with pytest.raises(UsageError, match="absent is not installed"):
        mw.run(experiment(tmp_path, logging=mw.Logging(every=5, trackers=(absent,))))


def test_a_start_that_is_refused_leaves_what_was_written_of_the_run_before(tmp_path):
    mw.run(experiment(tmp_path))
    before = outcome(tmp_path)
    with pytest.raises(UsageError):
        mw.run(experiment(tmp_path, max_steps=20, mesh="data=3"))
    assert outcome(tmp_path) == before


def test_a_page_that_cannot_be_made_does_not_fail_the_run(tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    assert mw.run(experiment(tmp_path)).step == 10
    assert "could not be written" in caplog.text
    assert report.read_run(tmp_path).ending.state == "finished"


def test_the_end_of_a_run_does_not_wait_for_a_page_that_takes_long(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("meshwright.engine._record.LARGEST_METRICS_NBYTES", 100)
    mw.run(experiment(tmp_path))
    assert not (tmp_path / "report.html").exists()
    assert f"`meshwright report {tmp_path}`" in caplog.text


def test_a_warning_is_on_the_screen_once_where_no_log_is_open(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    say = line_printer(mw.observe.Console(None), logging.WARNING)
    say("s3://bucket/run cannot be written to\x1b[2J")
    assert capsys.readouterr().err == "s3://bucket/run cannot be written to\\x1b[2J\n"


def attempt_before(run):
    """Return what the log says of how the attempt before ended."""
    said = (run / "logs/process-00000.log").read_text()
    return said.rpartition("the attempt before ended: ")[2].partition("\n")[0]


def test_a_run_that_continues_logs_how_the_attempt_before_ended(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        mw.run(experiment(tmp_path, stop=mw.Stop(max_seconds=0)))
    mw.run(experiment(tmp_path, max_steps=5))
    assert attempt_before(tmp_path).startswith("stopped: stopped after step 1: max_seconds is over")
    (tmp_path / "outcome.json").unlink()
    mw.run(experiment(tmp_path, max_steps=6))
    assert attempt_before(tmp_path) == "it was killed, and could not say why"
    monkeypatch.setenv("MESHWRIGHT_PROGRESS", str(tmp_path / "progress"))
    (tmp_path / "progress.failed").write_text("process 2 of 4 failed first")
    mw.run(experiment(tmp_path, max_steps=7))
    mw.run(experiment(tmp_path, max_steps=8))
    assert attempt_before(tmp_path) == "process 2 of 4 failed first"
    assert (tmp_path / "logs/process-00000.log").read_text().count("failed first") == 1


def test_a_run_that_was_finished_says_nothing_of_it_when_it_goes_on(tmp_path):
    mw.run(experiment(tmp_path, max_steps=5))
    mw.run(experiment(tmp_path, max_steps=6))
    assert "the attempt before" not in (tmp_path / "logs/process-00000.log").read_text()
