import random
import signal

import pytest

from end_to_end.running import SHORT, STEPS, final_arrays, kill, losses, reached, wait_for
from meshwright.observe._jsonl import read_jsonl
from meshwright.report._ledger import read_ledger


@pytest.fixture(scope="module")
def killed_again_and_again(shell):
    """A run that was killed at two random steps and in the middle of a save, and then left to end."""
    command, run = ("demo", "digits", "workdir=killed", *SHORT), shell.folder / "killed"
    moments = [reached(run, random.randint(5, 50)), saving(run), reached(run, random.randint(60, 100))]
    for moment in moments:
        child = shell.start(*command)
        wait_for(moment, child)
        said = kill(child)
        assert child.returncode == -signal.SIGKILL, said
    done = shell(*command)
    assert done.returncode == 0, done.stderr
    assert "continuing after step" in done.stderr
    return run


def saving(run):
    """True while a checkpoint is being written."""
    return lambda: any((run / "checkpoints").glob("step_*.tmp-*"))


def scores(run):
    reports = read_jsonl(run / "metrics.jsonl")
    return [(report["step"], report["test/loss"]) for report in reports if "test/loss" in report]


def test_the_loss_of_every_step_is_that_of_an_undisturbed_run(killed_again_and_again, uninterrupted):
    assert losses(killed_again_and_again) == losses(uninterrupted)
    assert scores(killed_again_and_again) == scores(uninterrupted)
    assert len(losses(uninterrupted)) == STEPS


def test_the_bytes_of_the_state_are_those_of_an_undisturbed_run(killed_again_and_again, uninterrupted):
    assert final_arrays(killed_again_and_again) == final_arrays(uninterrupted)


def test_the_work_that_was_done_twice_is_lost_in_the_ledger_and_all_seconds_are_told(killed_again_and_again):
    ledger = read_ledger(killed_again_and_again / "ledger.json")
    assert 3 <= ledger.attempts <= 4  # one may be killed before it has written anything
    assert (ledger.failures, ledger.ended) == (ledger.attempts - 1, "finished")
    assert ledger.seconds["lost"] >= 0  # as far as it was written before the kill
    assert ledger.seconds["step"] > 0
    reports = read_jsonl(killed_again_and_again / "metrics.jsonl")
    since_first_report = reports[-1]["time"] - reports[0]["time"]
    assert since_first_report < ledger.total < since_first_report + 200


@pytest.fixture(scope="module")
def interrupted(shell):
    """A run told to stop by SIGTERM, then by Ctrl-C, then left to end; with what the attempts answered."""
    command, run = ("demo", "digits", "workdir=interrupted", *SHORT), shell.folder / "interrupted"
    answers = []
    for number in (signal.SIGTERM, signal.SIGINT):
        last_step = max(losses(run)) if answers else 0
        child = shell.start(*command)
        wait_for(reached(run, last_step + 5), child)
        child.send_signal(number)
        _, err = child.communicate(timeout=400)
        answers.append((child.returncode, err))
    done = shell(*command)
    assert done.returncode == 0, done.stderr
    return run, answers


@pytest.mark.slow
def test_sigterm_saves_and_asks_to_be_run_again(interrupted):
    code, err = interrupted[1][0]
    assert code == 75
    assert "stopped by SIGTERM after step" in err
    assert "Traceback" not in err


def test_ctrl_c_saves_and_says_how_to_stop_at_once(interrupted):
    code, err = interrupted[1][1]
    assert code == 130
    assert "press Ctrl-C again to stop now" in err


def test_a_run_that_was_interrupted_continues_from_its_very_step(interrupted, uninterrupted):
    run, _ = interrupted
    assert losses(run) == losses(uninterrupted)
    assert final_arrays(run) == final_arrays(uninterrupted)


def wait_for_words(child, words):
    while words not in child.stderr.readline():
        assert child.poll() is None


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once(shell):
    child = shell.start("train", "mortal:experiment", "workdir=twice", "slow_at=2")
    wait_for_words(child, "sleeping")
    child.send_signal(signal.SIGINT)
    wait_for_words(child, "press Ctrl-C again")
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=400)
    assert child.returncode in (-signal.SIGINT, 130)  # shells make 130 of the first
