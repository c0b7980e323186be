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

from meshwright.errors import EXIT_DONE
from meshwright.processes._exchange import Exchange


@dataclass
class Member:
    """The state of this process as a member of a run; `member` is the only instance."""

    exchange: Exchange | None = None
    """The connections by which the processes compare; None before they are connected."""
    known_error: BaseException | None = None
    """The last error that all processes know."""
    watch: Any = None
    """The `Watch` for processes that end; None before they are connected."""
    on_word: Callable[[str], None] | None = None
    """The function that gets short texts from other processes."""
    num_unfinished: int = 0
    """The number of blocks in progress that should end before this process is ended."""
    lock: Lock = field(default_factory=Lock)
    """The lock for this number: the blocks are on several threads."""
    exit_delay_seconds: float = 0
    """The seconds between an error and the end of this process, in which others may report their errors."""
    exit_code: int = EXIT_DONE
    """The exit code that is due if JAX does not let this process end."""
    system_exit: SystemExit | None = None
    """The `SystemExit` that ended shared work."""
    sync_calls: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """The numbers of the calls that ask JAX whether to stop. They count until the process ends."""


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


# A registration cannot be undone, so one function closes all resources.
os.register_at_fork(after_in_child=_close_all)
