"""Processes of a run for a fork instead of an interpreter's start and a second of importing JAX.

For each stand-in that connects, this program forks a process that plays `program.main(*arguments)`, and tells
the stand-in its id and how it ended.
"""

import atexit
import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import traceback

from faults import program  # imports all that is needed, before the first fork


class Child:
    """A forked process."""

    def __init__(self, stand_in: socket.socket):
        self._stand_in = stand_in
        message, streams, *_ = socket.recv_fds(stand_in, 65536, 2)
        environ, arguments = json.loads(message)
        self._pid = os.fork()
        if self._pid == 0:
            play(environ, arguments, streams)
        for stream in streams:
            os.close(stream)
        self.is_over = os.pidfd_open(self._pid)
        self._tell(self._pid)

    def bury(self) -> None:
        """Tell the stand-in how it ended."""
        os.close(self.is_over)
        self._tell(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _tell(self, number: int) -> None:
        with contextlib.suppress(OSError):
            self._stand_in.sendall(f"{number}\n".encode())


def play(environ: dict[str, str], arguments: list[str], streams: list[int]) -> None:
    """Run the program and end as an interpreter does: traceback, exit handlers, exit code."""
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    os.closerange(3, 256)
    os.environ |= environ
    code = 0
    try:
        program.main(*arguments)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    with contextlib.suppress(SystemExit):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(address: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(socket.AF_UNIX) as door, selectors.DefaultSelector() as selector:
        door.bind(address)
        door.listen(16)
        selector.register(door, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        print("open", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:  # the test is over
                    return
                if key.fileobj is door:
                    stand_in, _ = door.accept()
                    child = Child(stand_in)
                    selector.register(child.is_over, selectors.EVENT_READ, (child.bury, child.is_over))
                    selector.register(stand_in, selectors.EVENT_READ, (child.kill, stand_in))
                else:
                    act, source = key.data
                    selector.unregister(source)
                    act()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception:
        traceback.print_exc()
        os._exit(1)
