"""What the launcher starts: it has the nursery fork the real program, and stands for it towards the launcher.

It hands over its output and what it was told in the environment, passes signals on, and ends as the program
ends. When it is killed, the nursery kills the program.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys


def main(address: str, *arguments: str) -> None:
    with socket.socket(socket.AF_UNIX) as nursery:
        nursery.connect(address)
        told = {name: value for name, value in os.environ.items() if name.startswith("JAX_")}
        socket.send_fds(nursery, [json.dumps([told, arguments]).encode() + b"\n"], [1, 2])
        answers = nursery.makefile()
        pid = int(answers.readline())

        def pass_on(number: int, frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = int(answers.readline())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code)


main(*sys.argv[1:])
