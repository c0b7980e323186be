"""SIGTERM where a run is busy for long: it saves what there is, or ends, within seconds."""

import os
import re
import signal
import sys
import time

import pytest

from end_to_end.running import kill, losses, processes_of, wait_for
from launched import by_process
from meshwright.observe._jsonl import read_jsonl
from meshwright.processes._heartbeat import read_entries

PAUSE, SECONDS = "1", 60
"""Of each of the 120 batches of an evaluation; and at most from SIGTERM to the end of the process."""


def heard(child, words):
    """Wait until a child says something on stderr."""
    for line in child.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended with {child.wait()}")


def terminated(child):
    """Send SIGTERM; return the exit code, and how long it took."""
    sent = time.monotonic()
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=400)
    return child.returncode, time.monotonic() - sent


def train(shell, *words):
    return shell.start("train", *words, "--fake-devices", "1")


def are_in(run, phase, number=1, seconds=0):
    """Return whether so many processes are in a phase, in which they have stood for so long."""

    def is_so():
        entries = read_entries(run / "board").values()
        return sum(each.phase == phase and each.still_seconds >= seconds for each in entries) == number

    return is_so


@pytest.fixture(scope="module")
def evaluation_cut_off(shell):
    """A run that was told to stop in an evaluation of two minutes; how it ended and in which time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shell.environ, "PAUSE", PAUSE)
        child, run = train(shell, "slow:evaluating", "workdir=evaluating"), shell.folder / "evaluating"
    try:
        wait_for(are_in(run, "evaluation"), child)
        ended = terminated(child)
    finally:
        kill(child)
    return run, ended


@pytest.mark.slow
def test_in_an_evaluation_it_saves_within_seconds(evaluation_cut_off):
    run, (code, seconds) = evaluation_cut_off
    assert code == 75
    assert seconds < SECONDS
    assert [path.name for path in (run / "checkpoints").glob("step_*")] == ["step_00000002"]


@pytest.mark.slow
def test_the_evaluation_is_made_when_the_run_goes_on(shell, evaluation_cut_off):
    run, _ = evaluation_cut_off
    assert not evaluated(run)
    done = shell("train", "slow:evaluating", "workdir=evaluating", "--fake-devices", "1")
    assert done.returncode == 0, done.stderr
    assert evaluated(run) == [2]
    assert list(losses(run)) == [1, 2, 3, 4]


def evaluated(run):
    return [report["step"] for report in read_jsonl(run / "metrics.jsonl") if "all/loss" in report]


@pytest.mark.slow
def test_in_a_compilation_before_the_first_step_it_ends_within_seconds(cold_shell, monkeypatch):
    shell = cold_shell
    monkeypatch.setitem(shell.environ, "JAX_LOG_COMPILES", "1")
    monkeypatch.delitem(shell.environ, "XLA_FLAGS")  # compiling is to take its time
    child = train(shell, "slow:compiling", "workdir=compiling")
    try:
        heard(child, "one batch read")
        heard(child, "MLIR module conversion")  # what follows is XLA's
        wait_for(are_in(shell.folder / "compiling", "compile", seconds=1), child)
        code, seconds = terminated(child)
    finally:
        kill(child)
    assert code == 75
    assert seconds < SECONDS
    assert not list((shell.folder / "compiling/checkpoints").glob("step_*"))


def launched(shell, *words):
    command = (sys.executable, "-m", "meshwright", "train", *words, "--fake-devices", "1")
    return shell.start("launch", "local", "-n", "2", "--", *command)


@pytest.mark.slow
def test_one_of_two_that_is_told_in_an_evaluation_stops_both_at_one_step(shell, cold_shell, monkeypatch):
    monkeypatch.setitem(cold_shell.environ, "PAUSE", PAUSE)
    launcher, run = launched(cold_shell, "slow:evaluating", "workdir=both"), shell.folder / "both"
    try:
        wait_for(are_in(run, "evaluation", 2), launcher)
        os.kill(processes_of(launcher)[1], signal.SIGTERM)
        _, err = launcher.communicate(timeout=400)
    finally:
        kill(launcher)
    assert launcher.returncode == 75, err
    assert re.findall(r"stopped by SIGTERM after step (\d+)", by_process(err)) == ["2", "2"]
    assert not evaluated(run)


@pytest.mark.nightly
def test_two_that_are_told_while_they_compile_end_within_seconds(shell, monkeypatch):
    monkeypatch.setitem(shell.environ, "JAX_LOG_COMPILES", "1")
    monkeypatch.delitem(shell.environ, "XLA_FLAGS")  # compiling is to take its time
    launcher = launched(shell, "slow:compiling", "workdir=both compiling")
    try:
        heard(launcher, "one batch read")
        heard(launcher, "MLIR module conversion")
        wait_for(are_in(shell.folder / "both compiling", "compile", 2, seconds=1), launcher)
        code, seconds = terminated(launcher)
    finally:
        kill(launcher)
    assert code == 75
    assert seconds < SECONDS
