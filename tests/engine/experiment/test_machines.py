"""Readings of machines and devices among the reports of a run, on its page and on its board."""

import contextlib
import time
from types import SimpleNamespace

import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.engine._machines import Machines
from meshwright.errors import UsageError
from meshwright.processes._heartbeat import read_entries
from meshwright.processes._slow import STEP_SECONDS
from processes.heartbeat.test_slow import told

SEEN = []


@contextlib.contextmanager
def slowly(run):
    """Open a tracker that takes its time, and keeps what the board tells meanwhile."""

    def write(step, values):
        time.sleep(0.06)
        SEEN.extend(each.readings for each in read_entries(run / "board").values() if each.readings)

    yield write


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "a"
    logging = mw.Logging(every=2, trackers=(lambda: slowly(run),), machine_seconds=0.02)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("meshwright.training._heartbeat._BEAT_SECONDS", 0.01)
        mw.run(experiment(run, max_steps=40, logging=logging))
    return run


@pytest.mark.slow
def test_reports_of_training_contain_the_newest_readings(run):
    reports = mw.observe.read_jsonl(run / "metrics.jsonl")
    found = {name for report in reports for name in report if name.startswith("machine/")}
    assert {"machine/memory/host", "machine/memory/process", "machine/busy/cpu"} <= found
    assert not {name for name in reports[0] if name.startswith("machine/")}  # sizes, written once
    assert not any(name.startswith("seconds/") for report in reports for name in report)


def test_the_page_has_a_section_on_machines_apart_from_speed_and_learning(run):
    page = (run / "report.html").read_text()
    machines = page.partition('<section id="machines">')[2].partition("</section>")[0]
    assert "machine/memory/…" in machines
    assert page.count("machine/memory/…") == machines.count("machine/memory/…")


def test_the_board_tells_them_with_the_seconds_of_steps(run):
    assert any("machine/memory/host" in each for each in SEEN)
    timed = [each for each in SEEN if STEP_SECONDS in each]
    assert all(each[STEP_SECONDS] > 0 for each in timed)
    assert timed


def test_nothing_is_read_if_nobody_wants_it(tmp_path):
    mw.run(experiment(tmp_path / "run", logging=mw.Logging(every=1, machine_seconds=None)))
    assert "machine/" not in (tmp_path / "run/metrics.jsonl").read_text()


def test_a_time_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"Logging.machine_seconds is 0; it must be above 0"):
        mw.Logging(machine_seconds=0)


def test_a_reader_that_fails_ends_no_run(tmp_path, monkeypatch, caplog):
    def fail():
        raise RuntimeError("no such device")

    monkeypatch.setattr("meshwright.engine._machines.machine_reader", lambda: fail)
    assert mw.run(experiment(tmp_path / "run", logging=mw.Logging(machine_seconds=0.01))).step == 10
    assert "the machine is no longer read" in caplog.text


def test_a_slow_peer_is_told_once_with_its_host(monkeypatch):
    said, times = [], iter(range(100))
    machines = Machines(1.0, warn=said.append)
    monkeypatch.setattr("meshwright.engine._machines.read_entries", lambda _: entries(next(times)))
    machines._board = "board"
    for _ in range(20):
        machines._gather()
    [line] = said
    assert "process 1 is slower than the others by 50 % of each step" in line
    assert line.endswith(", on node1")


def entries(time):
    readings = told([0.01 + time * 1e-6, 0.51 + time * 1e-6, 0.01 + time * 1e-6])
    return {n: SimpleNamespace(process=n, host=f"node{n}", readings=each) for n, each in readings.items()}
