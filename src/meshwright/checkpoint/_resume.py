"""Finds the checkpoint to resume from: the newest intact one, the same on all processes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from meshwright import process
from meshwright.checkpoint import _directory
from meshwright.errors import DamagedError
from meshwright.process import on_all, on_lead
from meshwright.storage import Directory

log = logging.getLogger("meshwright")

T = TypeVar("T")


def newest_intact(steps: Sequence[int], restore: Callable[[int], T]) -> tuple[T, dict[int, str]]:
    """Return `restore(step)` for the newest intact step, and the errors of newer steps.

    Processes read different parts, so damage that one of them finds makes all of them take an older step.
    Collective: call it on the main thread of all processes, with the same steps in ascending order.

    Raises:
      DamagedError: All checkpoints are damaged.
      MeshwrightError: Any other error of `restore` on any process. A checkpoint that does not match is no
        reason to take an older one: the user must decide.
    """
    damaged: dict[int, str] = {}
    for step in reversed(steps):
        try:
            return on_all(partial(restore, step)), damaged
        except DamagedError as error:
            damaged[step] = str(error)
    raise DamagedError(
        "all checkpoints are damaged, so there is none to continue from:\n  "
        + "\n  ".join(f"step {step}: {what}" for step, what in damaged.items())
        + "\nRestore one from a backup; or, to start from the beginning, move them away."
    )


def pass_over(
    directory: Directory, damaged: Mapping[int, str], resumed: int, is_open: bool
) -> tuple[str, ...]:
    """Log damaged checkpoints, rename them if the directory is open, and return the messages. Collective."""
    messages = []
    for step, what in damaged.items():
        said = f"step {step} is damaged; continuing from step {resumed} instead. {what}"
        if is_open:
            said += f" It is kept as {on_lead(partial(_directory.set_aside, directory, step))}."
        if process.is_lead():
            log.error(said)
        messages.append(said)
    return tuple(messages)
