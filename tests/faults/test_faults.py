"""Runs of four processes, of which one fails: all end soon, and the launcher names that one and the cause."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from flags import QUICK
from launched import by_process
from meshwright.errors import EXIT_HUNG, EXIT_PEERS
from soak import cases, rng

TESTS = Path(__file__).parents[1]
LAUNCH = "import sys; from meshwright.cli import main; sys.exit(main(sys.argv[1:]))"
NUM_PROCESSES, NUM_AT_ONCE = 4, 2
ENDS_WITHIN_SECONDS = 60

PHASES = {
    "before the first collective": None,
    "first batch": "first_batch",
    "tracing": "compile",
    "step": "step",
    "between steps": "evaluation",
    "data": "input",
    "save": "save",
    "evaluation": "evaluation",
}
"""The places for faults, and the phase that they are in."""
TOLD = ("before the first collective", "first batch", "tracing", "evaluation", "save")
"""Of an error here all hear while they wait, and raise it too."""
CANNOT_BE = {
    ("sleep", "before the first collective"),  # nor is there a watchdog yet
    ("sleep", "step"),  # a callback's thread sleeps, which nobody can tell from a device that does
    ("sys.exit", "step"),
    ("sys.exit", "save"),  # on other threads it is an error like any other
}
WHATS = ("9", "exception", "exit 0", "sleep", "sys.exit", "11", "exception", "9", "exit 0", "6")


def drawn():
    """Return what happens, where and to whom: all kinds and all places in turn, their pairs at random."""
    random = rng("faults of one of four processes")
    places = itertools.chain.from_iterable(random.sample([*PHASES], len(PHASES)) for _ in itertools.count())
    found = []
    for what in itertools.islice(itertools.cycle(WHATS), cases(few=2, many=100)):
        where = next(place for place in places if (what, place) not in CANNOT_BE)
        found.append((what, where, random.randrange(NUM_PROCESSES)))
    return found


CASES = drawn()


def launched(python, run, case):
    """Launch a run with its fault; return its exit code, what it printed and how long it took to end."""
    run.mkdir()
    said = json.dumps([str(run), *case])
    program = [*python, "-m", "faults.program", said]
    command = [sys.executable, "-c", LAUNCH, "launch", "local", "-n", str(NUM_PROCESSES), "--", *program]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    environ["XLA_FLAGS"] = QUICK
    ended = subprocess.run(command, capture_output=True, text=True, env=environ)
    seconds = time.time() - float((run / "acted").read_text()) if (run / "acted").exists() else None
    return SimpleNamespace(exit_code=ended.returncode, printed=by_process(ended.stderr), seconds=seconds)


@pytest.fixture(scope="module")
def all_launched(python, tmp_path_factory):
    """All cases, some at a time: much of each is waiting."""
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(NUM_AT_ONCE) as threads:
        yield [
            threads.submit(launched, python, folder / str(number), case) for number, case in enumerate(CASES)
        ]


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(len(CASES)), ids=[" ".join(map(str, case)) for case in CASES])
@pytest.mark.daily(1)
def test_a_fault_of_one_of_four_ends_all_soon_and_is_named(all_launched, number):
    what, where, who = CASES[number]
    ended = all_launched[number].result()
    print(ended.printed, ended)
    assert ended.seconds < ENDS_WITHIN_SECONDS
    report = ended.printed.partition("meshwright launch: ")[2]
    exit_code, named = expected(what, where, who)
    assert ended.exit_code == exit_code
    assert re.search(named, report, re.DOTALL)
    if what == "sleep":
        told = rf"\[{who}\] meshwright: process {who}: {PHASES[where]} has"
        assert re.search(told, ended.printed)
    if what != "exception" or where not in TOLD:
        assert set(re.findall(r"^\[(\d)\] Traceback", ended.printed, re.MULTILINE)) <= {str(who)}


def expected(what, where, who):
    """Return the launcher's exit code, and a pattern for what it says."""
    if what == "exception":
        if where == "save":  # all hear of it, and raise it
            return 1, f"process {who}: OSError: the fault that was built in"
        return 1, f"process {who} of 4 failed first, with exit code 1..*OSError: the fault that was built in"
    if (what, where) == ("sys.exit", "before the first collective"):  # in order, but too early
        return EXIT_PEERS, f"failed first, with exit code 6.*process {who} has ended its program early"
    if what in ("exit 0", "sys.exit"):
        return EXIT_PEERS, f"process {who} of 4 left with exit code 0 while the others were not done"
    if what == "sleep":
        return EXIT_HUNG, f"process {who} of 4 failed first, with exit code {EXIT_HUNG}"
    number = signal.Signals(int(what))
    return 128 + number, f"process {who} of 4 failed first, with signal {number.name}"
