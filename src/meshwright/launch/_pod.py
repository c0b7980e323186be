"""A process of a JobSet in its pod.

`_ends` has what it leaves for the others, and the summary of all.
"""

import contextlib
import os
import queue
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from meshwright.base._internal import ObjectPath, location, print_line
from meshwright.errors import MeshwrightError, UsageError
from meshwright.launch._child import Child
from meshwright.launch._ends import Ends, begin, leave, tell, telling_progress
from meshwright.launch._local import check_command, scratch
from meshwright.launch._members import End
from meshwright.launch._process import News
from meshwright.launch._summary import has_failed
from meshwright.launch._supervise import say

_POLL_SECONDS = 0.2
"""Longest wait of the main thread, which handles signals between waits."""
_DRAIN_SECONDS = 2


def run_pod(command: Sequence[str], name: str, shared: str | Path) -> int:
    """Run a process of a JobSet, and return its exit code; 128 + n if signal n ended it.

    Its output is passed on as it is. After a failure, the process with the lowest number of those that failed
    prints the summary of all. All signals are passed on; Kubernetes kills a pod that takes too long.

    Example:
      >>> import sys
      >>> mw.launch._internal.run_pod([sys.executable, "-c", "pass"], "gpt", "/runs")  # doctest: +SKIP
      0
    """
    check_command(command)
    place, start = location(shared), os.environ.get("MESHWRIGHT_START", "0")
    number, total = _place(os.environ)
    begin(Ends(place / f"{name}.launch", start), number, _host(os.environ))
    # A store that fails must not keep a pod whose time is up.
    ends = Ends((place.impatient() if isinstance(place, ObjectPath) else place) / f"{name}.launch", start)
    with scratch() as directory:
        progress = Path(directory, "progress")
        with telling_progress(progress, ends) if number == 0 else contextlib.nullcontext():
            end = _run(command, number, progress)
    try:
        leave(ends, end)
        if has_failed(end):
            tell(ends, number, total, name)
    except (OSError, MeshwrightError) as error:  # must not hide how the process ended
        say(f"process {number} ended, but the other pods cannot be told: {error}")
    return end.exit_code if end.exit_code >= 0 else 128 - end.exit_code


def _host(environ: Mapping[str, str]) -> str:
    """Return where this process runs: its node, if the manifest tells it, and its pod."""
    pod = socket.gethostname()
    node = environ.get("MESHWRIGHT_NODE")
    return f"{node} (pod {pod})" if node else pod


def _place(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of the process of this pod, and the number of all."""
    try:
        total = int(environ["JAX_NUM_PROCESSES"])
        if "JAX_PROCESS_ID" in environ:
            return int(environ["JAX_PROCESS_ID"]), total
        before = int(environ["MESHWRIGHT_JOB_INDEX"]) * int(environ["MESHWRIGHT_PODS_PER_JOB"])
        return before + int(environ["JOB_COMPLETION_INDEX"]), total
    except KeyError as error:
        raise UsageError(
            f"launch pod: the environment variable {error.args[0]} is not set. This command runs in the pods "
            "of a JobSet; `meshwright launch jobset --print` shows a manifest with all that it needs."
        ) from error


def _run(command: Sequence[str], number: int, progress: Path) -> End:
    news: News = queue.SimpleQueue()
    children: list[Child] = []
    received: list[int] = []

    def pass_on(signal_number: int, _: object) -> None:
        received.append(signal_number)
        for child in children:
            child.send(signal_number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, pass_on)
    environ = {"PYTHONUNBUFFERED": "1", **os.environ, "MESHWRIGHT_PROGRESS": str(progress)}
    child = Child(number, command, environ, news, _pass_on)
    early = list(received)
    children.append(child)
    for each in early:  # those that came before there was a process
        child.send(each)
    while news.empty():
        time.sleep(_POLL_SECONDS)
    child.kill()  # what it has started
    child.drain(time.monotonic() + _DRAIN_SECONDS)
    return End(number, _host(os.environ), child.exit_code, tuple(child.last_lines))


def _pass_on(_: int, line: str, out: TextIO) -> None:
    # Keep reading even if our own output is closed: a full pipe would block the process.
    with contextlib.suppress(OSError, ValueError):
        print_line(line, out)
