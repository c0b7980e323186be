"""Start the processes of a run on this machine, and wait until all of them have ended.

This file does not use JAX. The processes find each other by the environment variables
JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID.
"""

import argparse
import contextlib
import math
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
"""The processes that have ended and the signals that were received, in order."""

_ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)
"""Exit codes after which the other processes end by themselves, and may still be saving."""
_GRACE_SECONDS = 12
"""Default time from SIGTERM to SIGKILL. With the killing it is below 15 s; most platforms allow 30 s."""
_LONGEST_WAIT_SECONDS = 0.2
"""Longest wait of the main thread. Python does not wake it for a signal that arrives just before the wait, or
that another thread receives; it handles such a signal after the wait."""
_DRAIN_SECONDS = 2
"""Time to wait for the last output of killed processes."""


def launch(options: argparse.Namespace) -> int:
    """Run `meshwright launch local`."""
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
    """Run `command` in `num_processes` processes that find each other, and return one exit code for all.

    Output appears line by line, each line after the number of its process. The first SIGINT or SIGTERM is
    passed on to the processes; the second kills them. If one process fails, the others have `grace_seconds`
    to end and are then killed, and the last lines of the process that failed first are shown. A process that
    ended only because another one was gone does not count as failed. No process is left running, even if the
    launcher itself is killed (on Linux). Call this on the main thread.

    Args:
      command: the program and its arguments.
      num_processes: the number of processes to start.
      devices_per_process: the number of GPUs that each process gets, in order; None shows all to each.
      grace_seconds: the time that processes have to end, after SIGTERM or after one of them failed.

    Returns:
      The exit code of the process that failed first; 128 + n if signal n ended it. 6 if a process left with
      0 and the others could not go on without it. Otherwise the highest code: 130 or 75 if the run was
      interrupted and saved, 0 if all processes are done.

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
                if received:  # the running processes have got the signal; do not start the rest
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
            f"launch: {command[0]!r} cannot be started: it is not an executable program in PATH. To start a "
            "Python file, write: -- python FILE"
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
    """Pass the first signal on to all `children` and kill them at the second; yield the signals received."""
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
    """Wait until all processes have ended or the grace period is over; return those that ended, in order.

    The grace period begins when a process fails or SIGTERM arrives. Ctrl-C does not begin it: a person can
    press it again.
    """
    ended: list[Child] = []
    give_up = None
    while len(ended) < num_processes:
        left = math.inf if give_up is None else max(0, give_up - time.monotonic())
        try:
            one = news.get(timeout=min(left, _LONGEST_WAIT_SECONDS))
        except queue.Empty:
            if left == 0:
                break
            continue
        if isinstance(one, Child):
            ended.append(one)
        if give_up is None and (one == signal.SIGTERM if isinstance(one, int) else _has_failed(one)):
            give_up = time.monotonic() + grace_seconds
    return ended


def _has_failed(child: Child) -> bool:
    return child.returncode not in _ORDERLY


def _tell(children: Sequence[Child], ended: Sequence[Child], received: Sequence[int]) -> int:
    """Print what went wrong, if anything did, and return the exit code for all."""
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
        _say(f"killed process {numbers}, still running --grace seconds after SIGTERM. Raise --grace.")
        return 128 + signal.SIGTERM
    return max(child.returncode for child in children)


def _first_by_cause(ended: Sequence[Child]) -> Child:
    """Return the process that failed first, leaving aside those that failed because another was gone.

    The order of ending does not tell which was first: a process that dies closes its connections before the
    launcher can notice its end, so another one that loses the connection may be seen to end before it.
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
