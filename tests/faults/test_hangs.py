"""Runs of four processes, one of which stands still: the launcher says which and where, and all end."""

import itertools
import json
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from base.storage.gcs import FakeGcs
from flags import QUICK
from meshwright.errors import EXIT_HUNG
from pairs import case
from soak import cases, rng

TESTS = Path(__file__).parents[1]
LAUNCH = "import sys; from meshwright.cli import main; sys.exit(main(sys.argv[1:]))"
WAIT = "; the others wait for it"
HANGS = {
    "data": rf"Process WHO stands in the phase input, at .*hanging.py:\d+ in __getitem__.*{WAIT}",
    "sleep": rf"Process WHO stands in the phase evaluation, at .*hanging.py:\d+ in .*{WAIT}",
    "lock": rf"Process WHO stands in the phase evaluation, at .*hanging.py:\d+ in wait_for_a_lock{WAIT}",
    "save": r"Process WHO stands in the phase save, at ",
    "dead store": r"Process.* stands? in the phase save, at .*\(meshwright/storage/.*The disk or the store",
    "tracker": rf"Process WHO stands in the phase report, at .*hanging.py:\d+ in write{WAIT}",
    "branch": r"but process WHO waits elsewhere, in the phase evaluation, at .* in take_another_branch",
    "stop": rf"Process WHO is stopped by a signal{WAIT}. To let it go on: `kill -CONT \d+` on ",
    "interpreter": rf"Process WHO does not answer: .*keeps Python's lock{WAIT}",
}
"""The sentence that follows from what a process does; WHO is its number."""
ENDS = {
    "kill": (137, "process WHO of 4 failed first, with signal SIGKILL"),
    "no data": (1, "process WHO of 4 failed first.*IndexError: there are no more rows"),
    "full disk": (1, r"the save of step \d+ failed.*No space left on device"),
}
"""The exit code and what the launcher says, by what ends a process."""
LEAD_ALONE = ("save", "dead store", "tracker", "full disk")
"""What only process 0 does."""


class DyingGcs(FakeGcs):
    """A store that does not answer when the checkpoint of some step is written."""

    def __init__(self, step):
        super().__init__()
        self._dies_at = f"{step:08d}"

    def answer(self, method, path, *rest):
        if method == "PUT" and self._dies_at in path:
            time.sleep(1000)
        return super().answer(method, path, *rest)


@pytest.fixture
def launched(python, tmp_path):
    """Launch four processes on the CPU, and return how that ended."""
    return partial(ended_launch, python, tmp_path / "run")


def ended_launch(python, run, what, who, steps=200, at=60):
    program = [*python, "-m", "faults.hanging", json.dumps([str(run), what, who, steps, at])]
    command = [sys.executable, "-c", LAUNCH, "launch", "local", "-n", "4", "--grace", "3", "--", *program]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]), "XLA_FLAGS": QUICK}
    with DyingGcs(at) as store:
        if what == "dead store":
            environ |= {"STORE": "gs://bucket/checkpoints", "STORAGE_EMULATOR_HOST": store.url}
        return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "what", [case([what], what in ("data", "branch", "dead store", "interpreter")) for what in HANGS]
)
def test_who_stands_still_and_where_is_said_and_all_end_with_5(launched, what):
    who = 0 if what in LEAD_ALONE else 2
    check_named(launched(what, who), what, who)


def check_named(ended, what, who):
    """Check that all say which process stands still and where, and end with the code of a hang."""
    print(ended.stderr)
    said = ended.stderr.partition("meshwright launch: the run stands still:")[2]
    assert re.search(HANGS[what].replace("WHO", str(who)), said)
    assert ended.returncode == EXIT_HUNG
    # For a store that does not answer, all wait alike.
    assert what == "dead store" or f"meshwright launch: process {who} of 4 " in ended.stderr
    speakers = set(re.findall(r"\[(\d)\] meshwright: process \d stands still", ended.stderr))
    assert speakers >= {"0", "1", "2", "3"} - ({str(who)} if what in ("stop", "interpreter") else set())


@pytest.mark.nightly
@pytest.mark.timeout(0)
@pytest.mark.parametrize("what", ["no data", "full disk"])  # test_faults.py kills
def test_a_peer_that_ends_is_named_with_its_reason_and_nobody_is_said_to_stand_still(launched, what):
    who = 0 if what in LEAD_ALONE else 2
    check_ended(launched(what, who), what, who)


def check_ended(ended, what, who):
    """Check that the launcher says which process has ended, and why."""
    print(ended.stderr)
    exit_code, says = ENDS[what]
    assert ended.returncode == exit_code
    assert re.search(says.replace("WHO", str(who)), ended.stderr, re.DOTALL)
    assert "stands still" not in ended.stderr


def drawn():
    """Return what happens, to whom and after how many steps: all kinds in turn, the rest at random."""
    random, kinds = rng("hangs of one of four processes"), itertools.cycle([*HANGS, *ENDS])
    for what in itertools.islice(kinds, cases(few=10, many=20)):
        yield what, 0 if what in LEAD_ALONE else random.randrange(4), 20 * random.randrange(2, 8)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("what", "who", "at"), [*drawn()])
def test_whoever_has_a_fault_is_named_and_nobody_else(launched, what, who, at):
    ended = launched(what, who, at=at)
    (check_named if what in HANGS else check_ended)(ended, what, who)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("what", "steps"),
    [
        pytest.param("compile", 60, id="a long compile"),
        pytest.param("slow", 60, id="a slow machine"),
        pytest.param(None, cases(few=2_000, many=10_000), id="many steps", marks=pytest.mark.nightly),
    ],
)
def test_nothing_is_said_of_a_run_that_gets_on(launched, what, steps):
    ended = launched(what, 2, steps)
    print(ended.stderr)
    assert ended.returncode == 0
    assert "stands still" not in ended.stderr


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_process_that_is_slower_than_its_peers_is_named_with_its_figure(launched):
    ended = launched("slow", 2, 300)
    print(ended.stderr)
    named = re.findall(
        r"process (\d) is slower than the others by \d+ % of each step: it waits for examples", ended.stderr
    )
    assert set(named) == {"2"}
    assert ended.returncode == 0
    assert "stands still" not in ended.stderr
