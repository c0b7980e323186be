"""Processes for a fork instead of an interpreter's start, so that hundreds can be killed in seconds.

This program imports JAX, makes no device, and then plays scenarios, one for each line that it reads:
`["killed_at_random", {"directory": "/tmp/…", "kills": 100}]`. Each answer is a line of JSON: what the
scenario returns, or the traceback of the check that failed.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import jax  # noqa: F401 - before the first fork, so that no child spends a second on it

Tell = Callable[[object], None]


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
        """Return the next thing that it tells, or None when it is gone."""
        line = self._told.readline()
        return json.loads(line) if line.endswith("\n") else None

    def kill(self):
        """End it by SIGKILL, if it has not ended, and return what it had told and nobody has heard."""
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


def _run_and_leave(program: Callable[[Tell], None], writer: int) -> None:
    code = 1
    try:
        program(lambda said: os.write(writer, json.dumps(said).encode() + b"\n"))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    from crash import scenarios, two_processes

    players = vars(scenarios) | vars(two_processes)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Gloo, too, prints to stdout
    for line in sys.stdin:
        name, arguments = json.loads(line)
        arguments["directory"] = Path(arguments["directory"])
        try:
            answer = {"answer": players[name](**arguments)}
        except Exception:
            answer = {"traceback": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
