"""The global state of this process as a member of a run, which lasts until the process ends.

JAX lets a process join a run only once. And Python passes no arguments of ours to exit handlers and to the
hook for uncaught exceptions. So this state is global, and all of it is here.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from meshwright.process._board import Board


@dataclass
class Member:
    """The value that is `member`."""

    board: Board | None = None
    """The board on which the processes compare; None before they have met."""
    known_error: BaseException | None = None
    """The last error of which the other processes know."""
    watch: Any = None
    """The `Watch` for processes that are gone; None before they have met."""
    take_word: Callable[[str], None] | None = None
    """Who hears the words of others."""
    num_unfinished: int = 0
    """Blocks that are worth finishing before this process is ended."""
    counting: Lock = field(default_factory=Lock)
    """Held to change that number, as blocks are on several threads."""
    lingers_seconds: float = 0
    """Seconds that this process stays after an error, so that others may report theirs."""
    asked_to_exit: SystemExit | None = None
    """The `SystemExit` that ended shared work."""
    questions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers for JAX's agreement on when to stop, which counts for as long as the process lives."""


member = Member()


class ForkAware(Protocol):
    """An open resource that a forked process, such as a worker of a data loader, must close."""

    def close_in_fork(self) -> None:
        """Close the resource in a forked process; it stays open in the parent."""


_open: WeakSet[ForkAware] = WeakSet()


def close_in_forks(opened: ForkAware) -> None:
    """Close a resource in processes that are forked from now on, as long as it exists here."""
    _open.add(opened)


def _close_all() -> None:
    for opened in list(_open):
        opened.close_in_fork()


os.register_at_fork(after_in_child=_close_all)  # it cannot be undone, so there is one for all
