"""What tests start in Python's place: it has `server.py` fork the process, and stands for it.

    python -I -S stand_in.py ADDRESS -c … | -m … | PROGRAM …

It hands over its streams, passes signals on, and ends as the process ends, which is killed if this one is.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys


def main(address, *words):
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"!"], [0, 1, 2])
        request = {"environ": dict(os.environ), "folder": os.getcwd(), "words": words}  # noqa: PTH109 - slow to import
        server.sendall(json.dumps(request).encode() + b"\n")
        answers = server.makefile()
        pid = int(answers.readline())

        def pass_on(number, frame):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, pass_on)
        code = int(answers.readline())
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code)


main(*sys.argv[1:])
