"""Runs of four processes, one of which stands still: the launcher says which and where, and all end."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flags import QUICK
from meshwright.errors import EXIT_HUNG
from soak import cases

TESTS = Path(__file__).parents[1]
LAUNCH = "import sys; from meshwright.cli import main; sys.exit(main(sys.argv[1:]))"
WAIT = "; the others wait for it"
HANGS = {
    ("data", 2): rf"Process 2 stands in the phase input, at .*hanging.py:\d+ in __getitem__.*{WAIT}",
    ("sleep", 1): rf"Process 1 stands in the phase evaluation, at .*hanging.py:\d+ in .*{WAIT}",
    ("lock", 3): rf"Process 3 stands in the phase evaluation, at .*hanging.py:\d+ in wait_for_a_lock{WAIT}",
    ("save", 0): r"Process 0 stands in the phase save, at ",
    ("tracker", 0): rf"Process 0 stands in the phase report, at .*hanging.py:\d+ in write{WAIT}",
    ("branch", 2): r"but process 2 waits elsewhere, in the phase evaluation, at .* in take_another_branch",
    ("stop", 2): rf"Process 2 is stopped by a signal{WAIT}. To let it go on: `kill -CONT \d+` on ",
    ("interpreter", 2): rf"Process 2 does not answer: .*keeps Python's lock{WAIT}",
}
"""The sentence that follows, by what a process does and which process it is."""


def launched(run, what, who, steps=200):
    """Return a launch that has ended, of four processes on the CPU."""
    program = [sys.executable, "-m", "faults.hanging", json.dumps([str(run), what, who, steps])]
    command = [sys.executable, "-c", LAUNCH, "launch", "local", "-n", "4", "--grace", "3", "--", *program]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "XLA_FLAGS": QUICK}
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("what", "who"), HANGS, ids=[what for what, _ in HANGS])
def test_who_stands_still_and_where_is_said_and_all_end_with_5(tmp_path, what, who):
    ended = launched(tmp_path / "run", what, who)
    print(ended.stderr)
    said = ended.stderr.partition("meshwright launch: the run stands still:")[2]
    assert re.search(HANGS[what, who], said)
    assert ended.returncode == EXIT_HUNG
    speakers = set(re.findall(r"\[(\d)\] meshwright: process \d stands still", ended.stderr))
    assert speakers >= {"0", "1", "2", "3"} - ({str(who)} if what in ("stop", "interpreter") else set())


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_peer_that_is_killed_without_a_word_is_named(tmp_path):
    ended = launched(tmp_path / "run", "kill", 2)
    assert ended.returncode == 137
    assert "process 2 of 4 failed first, with signal SIGKILL" in ended.stderr
    assert "stands still" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("what", "steps"),
    [("compile", 60), ("slow", 60), (None, cases(few=2_000, many=10_000))],
    ids=["a long compile", "a slow machine", "many steps"],
)
def test_nothing_is_said_of_a_run_that_gets_on(tmp_path, what, steps):
    ended = launched(tmp_path / "run", what, 2, steps)
    print(ended.stderr)
    assert ended.returncode == 0
    assert "stands still" not in ended.stderr
