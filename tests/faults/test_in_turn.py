"""Nine kinds of faults in one run of four processes: each is named, and lets go as soon as it has been.

`make test` plays one such run, and `make soak` 25, which are 200 hangs.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from flags import QUICK
from meshwright.board import read_entries
from soak import cases, rng

TESTS = Path(__file__).parents[1]
LAUNCH = "import sys; from meshwright.cli import main; sys.exit(main(sys.argv[1:]))"
WAIT = "; the others wait for it"
INPUT = r"stands in the phase input, at .*in_turn.py:\d+ in"
SAYS = {
    "interpreter": rf"Process WHO does not answer: .*{WAIT}.* phase evaluation, at .* in keep_pythons_lock",
    "data": rf"Process WHO {INPUT} hold\){WAIT}",
    "lock": rf"Process WHO {INPUT} wait_for_a_lock\){WAIT}",
    "stop": rf"Process WHO is stopped by a signal{WAIT}. To let it go on: `(.*)` on ",
    "store": rf"Process WHO {INPUT} read_from_a_dead_store\){WAIT}",
    "tracker": rf"Process WHO stands in the phase report, at .*in_turn.py:\d+ in hold{WAIT}",
    "save": rf"Process WHO stands in the phase save, at .*in_turn.py:\d+ in hold\){WAIT}",
    "branch": r"All wait, but process WHO waits elsewhere, in the phase evaluation, at .* in take_another",
}
"""The sentence of the launcher about each kind."""


def plan(number):
    """Return what happens to which process, and who is killed at the end.

    Each is the first fault in its phase of its process, or of all: a run takes for usual what it has seen.
    """
    random = rng(f"hangs in turn, launch {number}")
    of_input = dict(zip(("data", "lock", "stop", "store"), random.sample(range(4), 4), strict=True))
    interpreter, branch = random.sample(range(4), 2)
    found = {"interpreter": interpreter, **of_input, "tracker": 0, "save": 0, "branch": branch}
    return found, random.randrange(4)


class Doors:
    """Lets go of processes that stand still."""

    def __init__(self, folder):
        self.pipes, self._store = folder / "pipe-", socket.create_server(("127.0.0.1", 0))
        self.port = self._store.getsockname()[1]
        for number in range(4):
            os.mkfifo(f"{self.pipes}{number}")

    def close(self):
        self._store.close()

    def open(self, what, who, sentence):
        """Let go of a process, as is right for what it does."""
        if what == "stop":
            subprocess.run(shlex.split(re.search(says(what, who), sentence)[1]), check=True)
        elif what == "store":
            connection, _ = self._store.accept()
            with connection:
                connection.sendall(b"x")
        else:
            Path(f"{self.pipes}{who}").write_bytes(b"x")


def kill(run, who):
    os.kill(read_entries(run / "board")[who].pid, signal.SIGKILL)


@pytest.fixture(scope="module", params=range(cases(few=1, many=25)))
def told(request, python, tmp_path_factory):
    """A plan, who is killed, what the launcher said of who stands still, all that it said, its exit code."""
    folder = tmp_path_factory.mktemp("run")
    with contextlib.closing(Doors(folder)) as doors:
        yield *plan(request.param), *played(python, folder / "run", doors, *plan(request.param))


def says(what, who):
    return SAYS[what].replace("WHO", str(who))


def played(python, run, doors, plan, killed):
    """Play the plan, and let go of each process when it has been named."""
    program = [*python, "-m", "faults.in_turn", str(run), str(doors.pipes), str(doors.port), json.dumps(plan)]
    command = [*python, "-c", LAUNCH, "launch", "local", "-n", "4", "--grace", "1", "--", *program]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *map(os.path.abspath, os.sys.path)])}
    environ["XLA_FLAGS"] = QUICK
    left, sentences, said, is_sentence = [*plan.items()], [], "", False
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as launch:
        for line in launch.stderr:
            said += line
            is_sentence |= line.startswith("meshwright launch: the run stands still:")
            if is_sentence and re.match("(Process|All)", line):
                is_sentence = False
                sentences.append(line)
                if left and re.match(says(*left[0]), line):
                    what, who = left.pop(0)
                    kill(run, killed) if what == "branch" else doors.open(what, who, line)
    return sentences, said, launch.returncode


@pytest.mark.soak
def test_each_kind_of_hang_is_named_in_turn_with_process_phase_and_line_and_nobody_else(told):
    plan, _, sentences, said, _ = told
    print(said)
    assert len(sentences) == len(plan)
    for (what, who), sentence in zip(plan.items(), sentences, strict=True):
        assert re.match(says(what, who), sentence)


@pytest.mark.soak
def test_a_peer_that_is_killed_without_a_word_is_named(told):
    _, killed, _, said, exit_code = told
    assert f"process {killed} of 4 failed first, with signal SIGKILL" in said
    assert exit_code == 128 + signal.SIGKILL
