"""A process of a run as the launcher sees it, and one that was started on this machine."""

import collections
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol, TextIO

from meshwright.launch._output import screen_text


class Outcome(Protocol):
    """The end of a process."""

    @property
    def number(self) -> int:
        """Number of the process in the run, from 0."""
        ...

    @property
    def host(self) -> str:
        """Name of its machine."""
        ...

    @property
    def exit_code(self) -> int:
        """The exit code of a process that has ended; -n if signal n ended it."""
        ...

    @property
    def last_lines(self) -> Iterable[str]:
        """The last lines of its output."""
        ...


class Process(Outcome, Protocol):
    """A process that was started."""

    def send(self, number: int) -> None:
        """Send a signal to it."""
        ...

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        ...

    def drain(self, until: float) -> None:
        """Wait for the last output of a process that has ended, until the time `until` at the latest."""
        ...


News = SimpleQueue[Process | int]
"""The processes that have ended and the signals that were received, in order."""
Show = Callable[[int, str, TextIO], None]
"""A function that is called with the number of a process, each line of output, and stdout or stderr."""


class Spawner(Protocol):
    """A way to start all processes of a run, once."""

    def start(self, number: int, news: News, show: Show) -> Process:
        """Start a process. The result is put into `news` when it has ended."""
        ...

    def saved(self) -> int | None:
        """Return the newest step that process 0 has reported; None for none. See `processes/_progress.py`."""
        ...


LAST_LINES = 20
"""Number of lines of output that are kept for the summary."""
# On Linux a process can ask to be killed when its parent ends (PR_SET_PDEATHSIG). The request survives
# `exec`, and so do Python's ignoring of SIGPIPE and the blocking of SIGINT by Ray, which are undone here.
# `preexec_fn` could make the same request, but is not safe where there are threads.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the launcher is gone")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
os.execvp(sys.argv[2], sys.argv[2:])
"""


class Child:
    """A running process of a launch."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environ: dict[str, str],
        news: queue.SimpleQueue[Any],
        show: Callable[[int, str, TextIO], None],
    ):
        """Start the process."""
        self.number, self.host = number, socket.gethostname()
        self._show = show
        self.last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        # In a session of its own: Ctrl-C in the terminal reaches only the launcher, which passes it on.
        self._process = subprocess.Popen(
            _dying_with_us(command),
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._threads = [threading.Thread(target=self._pass_on, args=pair, daemon=True) for pair in streams]
        self._threads.append(threading.Thread(target=self._await, args=(news,), daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def exit_code(self) -> int:
        """The exit code of the process; -n if signal n ended it, as in `subprocess`."""
        return self._process.returncode

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # The process leads a session of its own, so its number is also that of the group.
            os.killpg(self._process.pid, signal.SIGKILL)

    def drain(self, until: float) -> None:
        """Wait for the last output of a process that has ended, until the time `until` at the latest."""
        for thread in self._threads:
            thread.join(max(0, until - time.monotonic()))

    def _pass_on(self, stream: TextIO, out: TextIO) -> None:
        with stream:
            for line in stream:
                line = line.rstrip("\n")
                if (text := screen_text(line)) is not None:
                    self.last_lines.append(text)
                self._show(self.number, line, out)

    def _await(self, news: queue.SimpleQueue[Any]) -> None:
        self._process.wait()
        news.put(self)


def _dying_with_us(command: Sequence[str]) -> list[str]:
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
