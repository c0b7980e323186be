"""A process of a run as the launcher sees it, on this machine or on another one."""

from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Protocol, TextIO


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


class Place(Protocol):
    """A place for one start of all processes."""

    def start(self, number: int, news: News, show: Show) -> Process:
        """Start a process. The result is put into `news` when it has ended."""
        ...

    def saved(self) -> int | None:
        """Return the newest step that process 0 has reported; None for none. See `processes/_progress.py`."""
        ...
