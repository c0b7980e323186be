import io
import logging
import subprocess
import sys
import threading
import time

import pytest

import meshwright as mw
from meshwright.errors import EXIT_HUNG, UsageError

HANGING = """
import ctypes, sys
import meshwright as mw

def stuck():
    {library}(None).sleep(1000)

with mw.training.watchdog({seconds}, kill=True) as watch:
    watch(mw.engine.Tick(41))
    stuck()
"""


class Reports(logging.Handler):
    """Keeps what is logged, and lets a test wait for it."""

    def __init__(self):
        super().__init__()
        self.seen, self._arrived = [], threading.Semaphore(0)

    def emit(self, record):
        self.seen.append(record.getMessage())
        self._arrived.release()

    def wait_for(self, words):
        while not (found := [report for report in self.seen if words in report]):
            assert self._arrived.acquire(timeout=60)
        return found[0]


@pytest.fixture
def reports():
    handler = Reports()
    logging.getLogger("meshwright").addHandler(handler)
    yield handler
    logging.getLogger("meshwright").removeHandler(handler)


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "meshwright-watchdog"]


def test_a_run_that_stands_still_is_told_with_every_thread(reports, capfd):
    done = threading.Event()
    threading.Thread(target=done.wait, name="loader-3").start()
    try:
        with mw.training.watchdog(0.05) as watch:
            watch(mw.engine.Tick(7))
            first = reports.wait_for("the last step was 7")
    finally:
        done.set()
    assert first.startswith("process 0: no step has finished for 0.")
    for words in ("thread MainThread", "thread loader-3", "in wait_for"):
        assert words in first
    assert f"meshwright: {first}" in capfd.readouterr().err


def test_the_first_step_is_watched_too(reports):
    with mw.training.watchdog(0.05):
        assert reports.wait_for("there was no step yet")


def test_nothing_is_said_while_steps_finish(reports, capfd):
    with mw.training.watchdog(0.3) as watch:
        end = time.monotonic() + 0.8
        while time.monotonic() < end:
            watch(mw.engine.Tick(1))
    assert (reports.seen, capfd.readouterr().err) == ([], "")


def test_a_phase_may_take_ten_times_as_long_and_is_named(reports):
    with mw.training.watchdog(0.02) as watch:
        with watch.phase("evaluation"):
            report = reports.wait_for("evaluation has taken")
        watch(mw.engine.Tick(3))
        assert reports.wait_for("no step has finished for 0.02 s; the last step was 3.")
    assert report.startswith("process 0: evaluation has taken 0.2 s and is not over; there was no step yet.")


def test_each_phase_has_the_timeout_that_is_said(reports):
    with mw.training.watchdog({"step": 60, "save": 0.02}) as watch, watch.phase("save"):
        assert reports.wait_for("save has taken 0.02 s")


def test_a_phase_begins_anew_after_another(reports):
    with mw.training.watchdog({"step": 0.4, "save": 60}) as watch:
        watch(mw.engine.Tick(1))
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with watch.phase("save"):
                pass
    assert reports.seen == []


def test_the_thread_is_gone_after_the_run():
    with mw.training.watchdog(60):
        assert len(watchers()) == 1
    assert watchers() == []


def test_the_thread_is_gone_after_an_error():
    with pytest.raises(KeyboardInterrupt), mw.training.watchdog(60):
        raise KeyboardInterrupt
    assert watchers() == []


@pytest.mark.parametrize(
    ("library", "seconds", "exit_code"),
    [("ctypes.CDLL", 0.3, EXIT_HUNG), ("ctypes.PyDLL", {"step": 0.3, "start": 0.3}, 1)],
    ids=["gives up", "keeps"],
)
def test_a_process_that_hangs_in_c_is_ended_whether_or_not_it_gives_up_pythons_lock(
    python, library, seconds, exit_code
):
    script = HANGING.format(library=library, seconds=seconds)
    ended = subprocess.run([*python, "-c", script], capture_output=True, text=True, timeout=400)
    assert ended.returncode == exit_code
    assert "in stuck" in ended.stderr
    assert exit_code != EXIT_HUNG or "the last step was 41. In 0.3 s more it is ended" in ended.stderr


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_time_that_cannot_be_is_refused(seconds):
    with pytest.raises(UsageError, match="a number of seconds above 0"), mw.training.watchdog(seconds):
        pass


def test_times_of_phases_without_a_steps_are_refused():
    with pytest.raises(UsageError, match="at least for 'step'"), mw.training.watchdog({"save": 60}):
        pass


def test_a_report_is_logged_though_stderr_is_closed(reports, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with mw.training.watchdog(0.05):
        assert "there was no step yet" in reports.wait_for("start has taken")
