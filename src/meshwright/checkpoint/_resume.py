"""Which checkpoint a run goes on from: the newest that is intact, on all processes the same."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from meshwright import process
from meshwright.checkpoint import _directory
from meshwright.errors import DamagedError
from meshwright.process import on_lead, together
from meshwright.storage import Directory

log = logging.getLogger("meshwright")

T = TypeVar("T")


def newest_intact(steps: Sequence[int], restore: Callable[[int], T]) -> tuple[T, dict[int, str]]:
    """Return `restore(step)` of the newest step that is intact, and what is wrong with newer ones.

    A piece that one process alone finds damaged makes all of them fall back: most read different
    pieces. Collective: call it on the main thread of all processes, with the same steps in ascending
    order.

    Raises:
      DamagedError: None is intact.
      MeshwrightError: Whatever else `restore` raised on any process. A checkpoint that does not match
        is the user's to decide, and an older one would hide it.
    """
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        try:
            return together(partial(restore, step)), damaged
        except DamagedError as error:
            damaged[step] = str(error)
    raise DamagedError(
        "every checkpoint is damaged, so there is none to continue from:\n  "
        + "\n  ".join(f"step {step}: {what}" for step, what in damaged.items())
        + "\nCopy one back from elsewhere; or, to start afresh, move them away."
    )


def pass_over(
    directory: Directory, damaged: Mapping[int, str], resumed: int, is_open: bool
) -> tuple[str, ...]:
    """Return messages about damaged checkpoints, which are logged; set aside what is damaged, if we may.

    Collective.
    """
    messages = []
    for step, what in damaged.items():
        said = f"step {step} is damaged; continuing from step {resumed} instead. {what}"
        if is_open:
            said += f" It is kept as {on_lead(partial(_directory.set_aside, directory, step))}."
        if process.is_lead():
            log.error(said)
        messages.append(said)
    return tuple(messages)
