"""The ledger that a run keeps of its time."""

import contextlib
import time

import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.report._ledger import read_ledger


def failing(at, slow_until=0):
    """Return a tracker that is slow up to a step, and ends the run at another one, as Ctrl-C does."""

    @contextlib.contextmanager
    def tracker():
        def write(step, values):
            if step <= slow_until:
                time.sleep(0.1)
            if step == at:
                raise SystemExit

        yield write

    return tracker


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The ledgers of a run that ended between two saves, at step 7, and of the same when it was continued."""
    run = tmp_path_factory.mktemp("runs") / "a"
    often = {"logging": mw.Logging(every=1, trackers=(failing(at=7, slow_until=10),))}
    with pytest.raises(SystemExit):
        mw.run(experiment(run, **often))
    cut_off = read_ledger(run / "ledger.json")
    time.sleep(0.5)
    mw.run(experiment(run))
    return cut_off, read_ledger(run / "ledger.json")


def test_the_work_after_the_save_that_a_run_continues_from_is_lost(continued):
    cut_off, ledger = continued
    # Of the reports of the steps 5 to 7, each of which took 0.1 seconds, there is no checkpoint.
    assert 0.3 <= ledger.seconds["lost"] <= cut_off.total - 0.4
    assert cut_off.seconds["report"] >= 0.7
    assert ledger.seconds["report"] < cut_off.seconds["report"]
    assert (cut_off.saves, ledger.saves) == (1, 3)


def test_the_time_between_two_attempts_was_spent_waiting(continued):
    cut_off, ledger = continued
    assert 0.4 <= ledger.seconds["waiting"] < 60  # by the clock on the wall, which may be set meanwhile
    begun = [each.until - each.total for each in continued]
    assert begun[0] == pytest.approx(begun[1], abs=0.25)
    assert (ledger.attempts, ledger.ended, cut_off.ended) == (2, "finished", "stopped")


def test_nothing_is_written_by_a_run_that_is_finished_already(continued, tmp_path):
    mw.run(experiment(tmp_path / "run"))
    before = (tmp_path / "run/ledger.json").read_bytes()
    mw.run(experiment(tmp_path / "run"))
    assert (tmp_path / "run/ledger.json").read_bytes() == before


def test_a_damaged_ledger_begins_anew_and_does_not_end_the_run(tmp_path, caplog):
    (tmp_path / "ledger.json").write_text("nonsense")
    assert mw.run(experiment(tmp_path)).step == 10
    assert "ledger.json cannot be read, and begins anew" in caplog.text
    assert read_ledger(tmp_path / "ledger.json").attempts == 1


def test_a_ledger_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr("meshwright.engine._ledger.LEDGER", "not/there.json")
    assert mw.run(experiment(tmp_path)).step == 10
    assert caplog.text.count("there.json could not be written") == 1


def test_a_ledger_that_cannot_take_its_place_leaves_no_draft(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.engine._ledger.LEDGER", "checkpoints")  # where a directory is
    assert mw.run(experiment(tmp_path)).step == 10
    assert not (tmp_path / "checkpoints.tmp").exists()


def test_trackers_are_sent_the_seconds_of_the_ledger_and_the_file_of_metrics_is_not(tmp_path):
    sent = {}

    def collect(step, values):
        sent.update(values)

    mw.run(experiment(tmp_path, logging=mw.Logging(every=5, trackers=(collect,))))
    assert {"ledger/step", "ledger/compile", "ledger/start"} <= sent.keys()
    assert "ledger/step" not in mw.observe.read_jsonl(tmp_path / "metrics.jsonl")[-1]
