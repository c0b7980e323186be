"""Ten kinds of faults in one run of four processes: each is named, and lets go as soon as it has been."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from faults.in_turn import PLAN
from flags import QUICK
from meshwright.board import read_entries

TESTS = Path(__file__).parents[1]
LAUNCH = "import sys; from meshwright.cli import main; sys.exit(main(sys.argv[1:]))"
WAIT = "; the others wait for it"
INPUT = r"stands in the phase input, at .*in_turn.py:\d+ in"
SAYS = {
    "interpreter": rf"Process 3 does not answer: .*{WAIT}.* the phase evaluation, at .* in keep_pythons_lock",
    "data": rf"Process 1 {INPUT} hold\){WAIT}",
    "lock": rf"Process 3 {INPUT} wait_for_a_lock\){WAIT}",
    "stop": rf"Process 2 is stopped by a signal{WAIT}. To let it go on: `(.*)` on ",
    "store": rf"Process 0 {INPUT} read_from_a_dead_store\){WAIT}",
    "tracker": rf"Process 0 stands in the phase report, at .*in_turn.py:\d+ in hold{WAIT}",
    "save": rf"Process 0 stands in the phase save, at .*in_turn.py:\d+ in hold\){WAIT}",
    "branch": r"All wait, but process 2 waits elsewhere, in the phase evaluation, at .* in take_another",
}
"""The sentence of the launcher about each kind."""


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
            subprocess.run(shlex.split(re.search(SAYS[what], sentence)[1]), check=True)
        elif what == "store":
            connection, _ = self._store.accept()
            with connection:
                connection.sendall(b"x")
        else:
            Path(f"{self.pipes}{who}").write_bytes(b"x")


def kill(run, who):
    os.kill(read_entries(run / "board")[who].pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def told(python, tmp_path_factory):
    """Return what the launcher said about who stands still, in turn, all that it said, and its exit code."""
    folder = tmp_path_factory.mktemp("run")
    with contextlib.closing(Doors(folder)) as doors:
        yield played(python, folder / "run", doors)


def played(python, run, doors):
    """Play the plan, and let go of each process when it has been named."""
    program = [*python, "-m", "faults.in_turn", str(run), str(doors.pipes), str(doors.port)]
    command = [*python, "-c", LAUNCH, "launch", "local", "-n", "4", "--grace", "1", "--", *program]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *map(os.path.abspath, os.sys.path)])}
    environ["XLA_FLAGS"] = QUICK
    left, sentences, said, is_sentence = [*PLAN], [], "", False
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as launch:
        for line in launch.stderr:
            said += line
            is_sentence |= line.startswith("meshwright launch: the run stands still:")
            if is_sentence and re.match("(Process|All)", line):
                is_sentence = False
                sentences.append(line)
                if left and re.match(SAYS[left[0][0]], line):
                    what, who = left.pop(0)
                    kill(run, 1) if what == "branch" else doors.open(what, who, line)
    return sentences, said, launch.returncode


def test_each_kind_of_hang_is_named_in_turn_with_process_phase_and_line_and_nobody_else(told):
    sentences, said, _ = told
    print(said)
    assert len(sentences) == len(PLAN)
    for (what, _), sentence in zip(PLAN, sentences, strict=True):
        assert re.match(SAYS[what], sentence)


def test_a_peer_that_is_killed_without_a_word_is_named(told):
    _, said, exit_code = told
    assert "process 1 of 4 failed first, with signal SIGKILL" in said
    assert exit_code == 128 + signal.SIGKILL
