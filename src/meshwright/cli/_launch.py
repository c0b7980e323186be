"""Start the processes of a run on this machine, and stay until all have ended.

Knows nothing of JAX. The children find each other by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID.
"""

import argparse
import contextlib
import os
import queue
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from meshwright.cli._child import Child
from meshwright.cli._train import use_fake_devices
from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_DONE, EXIT_PEERS, UsageError

News = queue.SimpleQueue[Child | int]
"""Children that have ended, and signals that have come, in order."""

_ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)
"""After one of these the others end by themselves, and may still be saving."""
_GRACE_SECONDS = 12
"""With what the killing takes less than 15; platforms give 30 from SIGTERM to SIGKILL."""
_DRAIN_SECONDS = 2
"""What the last lines may take of those that were killed."""


def launch(options: argparse.Namespace) -> int:
    """Answer `meshwright launch local`."""
    if options.fake_devices:
        use_fake_devices(options.fake_devices)
    return launch_local(
        options.command_line,
        options.num_processes,
        devices_per_process=options.devices_per_process,
        grace_seconds=options.grace,
    )


def launch_local(
    command: Sequence[str],
    num_processes: int,
    *,
    devices_per_process: int | None = None,
    grace_seconds: float = _GRACE_SECONDS,
) -> int:
    """Run `command` in `num_processes` processes that find each other; return one exit code for all.

    What they print appears line by line after the number of the process. SIGINT and SIGTERM are passed on
    once; the second time the processes are killed. When one fails, the others are killed that have not ended
    after `grace_seconds`, and the last lines of the one that failed are shown: of the first that did so for a
    cause of its own, and not because another was gone. Nothing is left running, even if the launcher is
    killed (on Linux). Call it on the main thread.

    Args:
      devices_per_process: so many GPUs are each process's own, in order; None shows all to each.
      grace_seconds: how long processes may take to end after SIGTERM, too, whatever they wait for.

    Returns:
      The code of the first that failed, 128 + n where signal n ended it; 6 where one left with 0 and the
      others could not go on; else the highest: 130 or 75 where the run was interrupted and saved, 0 where
      all are done.

    Raises:
      UsageError: the command cannot be run; nothing was started.
    """
    _check(command, num_processes, grace_seconds)
    news: News = queue.SimpleQueue()
    children: list[Child] = []
    try:
        address = f"127.0.0.1:{_free_port()}"
        with _passing_on_signals(children, news) as received:
            for number in range(num_processes):
                environ = _environ(address, num_processes, number, devices_per_process)
                children.append(Child(number, command, environ, news))
                if received:  # those that are there have heard it; the others need not start
                    break
            ended = _wait(news, len(children), grace_seconds)
    finally:
        for child in children:
            child.kill()
        drained_by = time.monotonic() + _DRAIN_SECONDS
        for child in children:
            child.drain(drained_by)
    return _tell(children, ended, received)


def _check(command: Sequence[str], num_processes: int, grace_seconds: float) -> None:
    if not grace_seconds >= 0:
        raise UsageError(f"launch: --grace is {grace_seconds:g} seconds; it must be at least 0.")
    if num_processes < 1:
        raise UsageError(f"launch: -n is {num_processes} processes; it must be at least 1.")
    if not command:
        raise UsageError(
            "launch: there is no program to start. Write it after --: launch local -n 2 -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"launch: {command[0]!r} cannot be started: it is no program in PATH, or not executable. To "
            "start a Python file, write: -- python FILE"
        )


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


@contextlib.contextmanager
def _passing_on_signals(children: Sequence[Child], news: News) -> Iterator[list[int]]:
    """Send what we receive to all `children`, and kill them the second time; give what was received."""
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        news.put(number)
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


def _wait(news: News, num_processes: int, grace_seconds: float) -> list[Child]:
    """Return those that have ended, in order: all, or who did within the time of grace.

    That begins when one fails, and when SIGTERM comes. Who presses Ctrl-C can press it again.
    """
    ended: list[Child] = []
    give_up = None
    while len(ended) < num_processes:
        try:
            one = news.get(timeout=None if give_up is None else max(0, give_up - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(one, Child):
            ended.append(one)
        if give_up is None and (one == signal.SIGTERM if isinstance(one, int) else _has_failed(one)):
            give_up = time.monotonic() + grace_seconds
    return ended


def _has_failed(child: Child) -> bool:
    return child.returncode not in _ORDERLY


def _tell(children: Sequence[Child], ended: Sequence[Child], received: Sequence[int]) -> int:
    """Say what went wrong, if anything did, and return the exit code for all."""
    if len(received) > 1:
        return 128 + received[-1]
    failed = [child for child in ended if _has_failed(child)]
    killed = [child for child in children if child not in ended]
    if failed:
        first = _first_by_cause(ended)
        if -first.returncode not in received:
            _report(first, len(children))
        code = first.returncode if _has_failed(first) else EXIT_PEERS
        return code if code > 0 else 128 - code
    if killed:
        numbers = ", ".join(str(child.number) for child in killed)
        _say(f"killed process {numbers}, which had not ended in time after SIGTERM. --grace gives more time.")
        return 128 + signal.SIGTERM
    return max(child.returncode for child in children)


def _first_by_cause(ended: Sequence[Child]) -> Child:
    """Return the first of those that failed, but for those that failed because another was gone.

    A process that dies closes its connections before it can be waited for, so that others may end before it.
    """
    failed = [child for child in ended if _has_failed(child)]
    causes = [child for child in failed if not child.fails_for_another()]
    left = [child for child in ended if child.returncode == EXIT_DONE]
    return (causes or left or failed)[0]


def _report(first: Child, num_processes: int) -> None:
    code = first.returncode
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    what = f"failed first, with {how}" if code else f"left with {how} while the others were not done"
    lines = [f"  {line}" for line in first.last_lines or ["(none)"]]
    _say("\n".join([f"process {first.number} of {num_processes} {what}. Its last lines:", *lines]))


def _say(text: str) -> None:
    print(f"meshwright launch: {text}", file=sys.stderr, flush=True)
