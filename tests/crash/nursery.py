"""Processes for a fork instead of an interpreter's start, so that hundreds can be killed in seconds.

This program imports JAX, makes no device, and then plays scenarios, one for each line that it reads:
`["killed_at_random", {"directory": "/tmp/…", "kills": 100}]`. Each answer is a line of JSON: what the
scenario returns, or the traceback of the check that failed. Before it, lines may tell of the progress.

Nothing waits for a disk, as a kill, unlike a power cut, takes nothing from the page cache.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import jax  # noqa: F401 - before the first fork, so that no child spends a second on it

Tell = Callable[[object], None]

_SILENT_SECONDS = 300
"""A child that tells nothing for so long hangs: it shows where, and ends."""

_PROGRESS_SECONDS = 5
_reported = time.monotonic()
_answers = sys.stdout


class Child:
    """A forked process that runs `program(tell)`, and what it has told, line by line."""

    def __init__(self, program: Callable[[Tell], None]):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_and_leave(program, writer)
        os.close(writer)
        self._told = os.fdopen(reader)

    def hear(self):
        """Return the next thing that it tells."""
        line = self._told.readline()
        assert line.endswith("\n"), "the child is gone"
        return json.loads(line)

    def kill(self):
        """End it by SIGKILL, and return what it had told and nobody has heard."""
        os.kill(self.pid, signal.SIGKILL)
        code, told = self._end()
        assert code == -signal.SIGKILL, f"the child had ended with {code}"
        return told

    def kill_or_bury(self):
        """Do the same with one that may have ended, in whatever way."""
        os.kill(self.pid, signal.SIGKILL)
        return self._end()[1]

    def wait(self):
        """Return what it tells until it ends, which must be without an error."""
        code, told = self._end()
        assert code == 0, f"the child ended with {code}"
        return told

    def end(self):
        """Return what it tells until it ends, be that by SIGKILL."""
        code, told = self._end()
        assert code in (0, -signal.SIGKILL), f"the child ended with {code}"
        return told

    def _end(self):
        with self._told:
            told = [json.loads(line) for line in self._told if line.endswith("\n")]
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), told


def report(**figures: int) -> None:
    """Tell how far a scenario is, now and then."""
    global _reported
    if time.monotonic() > _reported + _PROGRESS_SECONDS:
        _reported = time.monotonic()
        _say({"progress": figures})


def _say(said: object) -> None:
    print(json.dumps(said), file=_answers, flush=True)


def _run_and_leave(program: Callable[[Tell], None], writer: int) -> None:
    def tell(said: object) -> None:
        signal.alarm(_SILENT_SECONDS)
        os.write(writer, json.dumps(said).encode() + b"\n")

    faulthandler.register(signal.SIGALRM, chain=True)  # and then end as by any signal
    signal.alarm(_SILENT_SECONDS)
    code = 1
    try:
        program(tell)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    """Play what is asked for on standard input."""
    from crash import disks, going_back, interruptions, scenarios, two_processes

    global _answers
    players = vars(scenarios) | vars(disks) | vars(interruptions) | vars(two_processes) | vars(going_back)
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo, too, prints to stdout
    os.fsync = lambda _: None
    for line in sys.stdin:
        name, arguments = json.loads(line)
        arguments["directory"] = Path(arguments["directory"])
        try:
            _say({"answer": players[name](**arguments)})
        except Exception:
            _say({"traceback": traceback.format_exc()})
