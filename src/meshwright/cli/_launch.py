"""Start the processes of a run on this machine, and stay until all have ended.

Knows nothing of JAX. The children find each other by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID.
"""

import argparse
import collections
import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

from meshwright.cli._train import use_fake_devices
from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_DONE, UsageError

_ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)
"""After one of these the others end by themselves, and may still be saving."""
_LAST_LINES = 20
_CHATTER = "[Gloo] Rank "
"""What JAX's CPU collectives print, from C++, each time that they connect."""
_DRAIN_SECONDS = 2

# Linux ends a process with its parent when asked to, from within: PR_SET_PDEATHSIG. It outlives `exec`,
# as does Python's ignoring of SIGPIPE. A `preexec_fn` could ask too, but not where there are threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the launcher is gone")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def launch(options: argparse.Namespace) -> int:
    """Answer `meshwright launch local`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    return launch_local(
        options.command, options.num_processes, devices_per_process=options.devices_per_process
    )


def launch_local(
    command: Sequence[str],
    num_processes: int,
    *,
    devices_per_process: int | None = None,
    grace_seconds: float = 10,
) -> int:
    """Run `command` in `num_processes` processes that find each other; return one exit code for all.

    What they print appears line by line after the number of the process. SIGINT and SIGTERM are passed on
    once; the second time the processes are killed. When one fails, the others get `grace_seconds` for their
    own messages and are killed, and the last lines of the one that failed are shown. Nothing is left
    running, even if the launcher is killed (on Linux). Call it on the main thread.

    Args:
      devices_per_process: so many GPUs are each process's own, in order; None shows all to each.

    Returns:
      The code of the first that failed, 128 + n where signal n ended it; else the highest: 130 or 75
      where the run was interrupted and saved, 0 where all are done.

    Raises:
      UsageError: the command cannot be run; nothing was started.
    """
    _check(command, num_processes)
    ended: queue.Queue[_Child] = queue.Queue()
    children: list[_Child] = []
    try:
        address = f"127.0.0.1:{_free_port()}"
        with _passing_on_signals(children) as received:
            for number in range(num_processes):
                environ = _environ(address, num_processes, number, devices_per_process)
                children.append(_Child(number, command, environ, ended))
                if received:  # those that are there have heard it; the others need not start
                    break
            failed = _wait(ended, len(children), grace_seconds)
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.drain()
    if failed and -failed.returncode not in received and len(received) < 2:
        _report(failed, num_processes)
    return _exit_code(children, failed, received)


class _Child:
    """One of the processes, with its output on the way to ours."""

    def __init__(
        self, number: int, command: Sequence[str], environ: dict[str, str], ended: "queue.Queue[_Child]"
    ):
        self.number = number
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        # A session of its own: the terminal's Ctrl-C reaches the launcher alone, which passes it on.
        self._process = subprocess.Popen(
            _dying_with_us(command),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._threads = [threading.Thread(target=self._pass_on, args=pair, daemon=True) for pair in streams]
        self._threads.append(threading.Thread(target=self._await, args=(ended,), daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def returncode(self) -> int:
        """As `subprocess` has it: -n where signal n ended the process."""
        return self._process.returncode

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def drain(self) -> None:
        """Wait for the last of the output of a process that was killed or has ended."""
        for thread in self._threads:
            thread.join(_DRAIN_SECONDS)

    def _pass_on(self, stream: TextIO, out: TextIO) -> None:
        with stream:
            for line in stream:
                line = line.rstrip("\n")
                if line.startswith(_CHATTER):
                    continue
                self.last_lines.append(line)
                # Read on, whoever closed our output: a full pipe would stop the child.
                with contextlib.suppress(OSError, ValueError):
                    out.write(f"[{self.number}] {line}\n")
                    out.flush()

    def _await(self, ended: "queue.Queue[_Child]") -> None:
        self._process.wait()
        ended.put(self)


def _check(command: Sequence[str], num_processes: int) -> None:
    if num_processes < 1:
        raise UsageError(f"launch: the number of processes is {num_processes}, but must be at least 1.")
    if not command:
        raise UsageError(
            "launch: no command given; write it after --, as in: launch local -n 2 -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(f"launch: there is no command {command[0]!r}, or it may not be executed.")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _environ(
    address: str, num_processes: int, number: int, devices_per_process: int | None
) -> dict[str, str]:
    environ = {
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(num_processes),
        "JAX_PROCESS_ID": str(number),
    }
    if devices_per_process is not None:
        first = number * devices_per_process
        environ["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(first, first + devices_per_process)))
    return environ


def _dying_with_us(command: Sequence[str]) -> list[str]:
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


@contextlib.contextmanager
def _passing_on_signals(children: Sequence[_Child]) -> Iterator[list[int]]:
    """Send what we receive to all `children`, and kill them the second time; give what was received."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for child in children:
            if len(received) == 1:
                child.send(number)
            else:
                child.kill()

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(ended: "queue.Queue[_Child]", num_processes: int, grace_seconds: float) -> _Child | None:
    """Return the first that failed, after the others' time of grace; or None, after all have ended."""
    failed, give_up = None, 0.0
    for _ in range(num_processes):
        try:
            child = ended.get(timeout=max(0, give_up - time.monotonic()) if failed else None)
        except queue.Empty:
            break
        if failed is None and child.returncode not in _ORDERLY:
            failed, give_up = child, time.monotonic() + grace_seconds
    return failed


def _report(failed: _Child, num_processes: int) -> None:
    code = failed.returncode
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    print(
        f"meshwright launch: process {failed.number} of {num_processes} failed first, with {how}. "
        "Its last lines:",
        *(f"  {line}" for line in failed.last_lines or ["(none)"]),
        sep="\n",
        file=sys.stderr,
        flush=True,
    )


def _exit_code(children: Sequence[_Child], failed: _Child | None, received: Sequence[int]) -> int:
    if len(received) > 1:
        return 128 + received[-1]
    if failed:
        return failed.returncode if failed.returncode > 0 else 128 - failed.returncode
    return max(child.returncode for child in children)
