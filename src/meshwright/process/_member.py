"""The state that this process keeps as a member of a run, in one place: it outlives single calls.

JAX lets a process join a run once, for as long as it lives; and what Python calls where a process ends, by an
exit handler or for an uncaught exception, is given nothing of ours. So a process has one membership.
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


class Forgettable(Protocol):
    """A thing open in this process that a fork of it, such as a data loader's worker, must close."""

    def forget(self) -> None:
        """Let go of it in a process that was forked: its parent still has it."""


_forgettable: WeakSet[Forgettable] = WeakSet()


def forget_in_forks(opened: Forgettable) -> None:
    """Let forked processes forget what was opened, for as long as anybody has it here."""
    _forgettable.add(opened)


def _forget_all() -> None:
    for opened in list(_forgettable):
        opened.forget()


os.register_at_fork(after_in_child=_forget_all)  # it cannot be taken back, so there is one for all
