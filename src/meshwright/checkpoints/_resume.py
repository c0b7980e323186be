"""Finds the checkpoint to resume from: the newest intact one, the same on all processes."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from meshwright.base._internal import Directory, ObjectPath
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.errors import DamagedError, listed
from meshwright.processes import _internal as processes
from meshwright.processes._internal import on_all, on_lead

log = logging.getLogger("meshwright")

T = TypeVar("T")


class Candidate(NamedTuple):
    """A checkpoint to resume from. Of two of one step, that in memory is greater, as it is read faster."""

    step: int
    is_in_memory: bool = False

    def __str__(self) -> str:
        return f"step {self.step}{' in memory' if self.is_in_memory else ''}"


def newest_intact(
    candidates: Sequence[Candidate], restore: Callable[[Candidate], T]
) -> tuple[T | None, Candidate | None, dict[Candidate, str]]:
    """Return `restore(candidate)` of the newest intact one, which one that is, and the errors of newer ones.

    Without candidates, or if all are damaged and only in memory, the first two are None: the run is then as
    if it had saved nothing. What was on a disk is not given up like this.
    Processes read different parts, so damage that one of them finds makes all of them take an older one.
    Collective: call it on the main thread of all processes, with the same candidates.
    """
    damaged: dict[Candidate, str] = {}
    for candidate in sorted(candidates, reverse=True):
        try:
            return on_all(partial(restore, candidate)), candidate, damaged
        except DamagedError as error:
            damaged[candidate] = str(error)
    if all(candidate.is_in_memory for candidate in damaged):
        return None, None, damaged
    raise DamagedError(
        "all checkpoints are damaged, so there is none to continue from:\n  "
        + "\n  ".join(f"{candidate}: {what}" for candidate, what in damaged.items())
        + "\nRestore one from a backup; or, to start from the beginning, move them away."
    )


def pass_over(
    directory: Directory, damaged: Mapping[Candidate, str], resumed: Candidate | None, is_open: bool
) -> tuple[str, ...]:
    """Log damaged checkpoints, rename those on disk if it is open, and return the messages. Collective."""
    messages = []
    for candidate, what in damaged.items():
        said = f"{candidate} is damaged; {_instead(resumed)} instead. {what}"
        if is_open and not candidate.is_in_memory:
            said += f" It is kept as {on_lead(partial(_directory.set_aside, directory, candidate.step))}."
        messages.append(said)
    _tell(messages)
    return tuple(messages)


def not_complete(found: Mapping[int, str], resumed: Candidate | None) -> tuple[str, ...]:
    """Log the newer checkpoints in memory that some process lacks, and return the messages."""
    newer = [step for step in sorted(found) if resumed is None or step > resumed.step]
    messages = tuple(
        f"step {step} in memory is not complete: {found[step]}; {_instead(resumed)}" for step in newer
    )
    _tell(messages)
    return messages


def tell_uncommitted(directory: Directory, resumed: Candidate | None) -> None:
    """Log which newer steps in a store have files, but no manifest. Collective.

    Only on a disk this shows damage: a save that is killed leaves them under the name of the step.
    """

    def tell() -> None:
        begun = _directory.temporaries(directory) if isinstance(directory, ObjectPath) else []
        newest = "" if resumed is None else _directory.step_name(resumed.step)
        if newer := [path.name for path in begun if path.name > newest]:
            log.warning(
                f"{listed(newer)} in {directory} have files but no {MANIFEST}: either their saves did not "
                f"end, or the manifests were removed. {_instead(resumed)} instead."
            )

    on_lead(tell)


def _instead(resumed: Candidate | None) -> str:
    return f"continuing from {resumed}" if resumed else "starting from the beginning"


def _tell(messages: Sequence[str]) -> None:
    """Log messages about checkpoints that were passed over, on process 0."""
    if processes.is_lead():
        for said in messages:
            log.error(said)
