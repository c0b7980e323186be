"""Settings and budget of the checkpoints in memory: how many fit on a host, and which are removed for the
next.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax

from meshwright.base._internal import documented, human_bytes
from meshwright.checkpoints._directory import step_name
from meshwright.checkpoints._format._container import plan_file
from meshwright.checkpoints._format._layout import ArrayLayout, layouts
from meshwright.checkpoints._host_memory._host_directory import HostDirectory
from meshwright.errors import UsageError


@documented
@dataclass(frozen=True)
class InMemory:
    """Checkpoints in the memory of each host, besides those on a disk: more often, and cheaper.

    They outlive the processes of a run, but not the host. A run that starts again continues from the newest
    checkpoint of both kinds that is intact and that all processes can complete.

    Unproven: never run on more than one machine.

    Raises:
      UsageError: A number is below 1, or the directory is not an absolute path.

    Example:
      >>> mw.checkpoints.InMemory(every=10, budget_nbytes=32 << 30)
      InMemory(every=10, budget_nbytes=34359738368, directory='/dev/shm')
    """

    is_known_by_place: ClassVar[bool] = True

    every: int = 10
    """The number of steps from one checkpoint to the next. While one is still being written, none begins."""
    budget_nbytes: int = 16 << 30
    """The most bytes on each host, for all processes there. Two checkpoints must fit: the newest complete one
    stays while the next is written. If more fit, more are kept; the oldest goes first."""
    directory: str = "/dev/shm"
    """The directory in memory (tmpfs), in which the run makes a directory of its own."""

    def __post_init__(self) -> None:
        for name in ("every", "budget_nbytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"InMemory.{name} is {value!r}; it must be a whole number of at least 1.")
        if not isinstance(self.directory, str) or not Path(self.directory).is_absolute():
            raise UsageError(
                f"InMemory.directory is {self.directory!r}; it must be an absolute path of a directory in "
                "memory, such as '/dev/shm'."
            )


_FEWEST = 2
"""The newest complete checkpoint, and the one that is being written."""


def layouts_here(leaves: Mapping[str, Any], directory: HostDirectory) -> tuple[ArrayLayout, ...]:
    """Return the layouts of a state in which a process of this host writes each chunk that one has."""
    return layouts(leaves, jax.process_count(), frozenset(directory.processes))


def nbytes_here(arrays: tuple[ArrayLayout, ...], directory: HostDirectory) -> int:
    """Return the bytes of the data files of a checkpoint on this host."""
    return sum(plan_file(arrays, number).nbytes for number in directory.processes)


def check_room(nbytes: int, settings: InMemory, directory: HostDirectory) -> None:
    """Check that two checkpoints fit into the budget and into the directory's file system."""
    needed = _FEWEST * nbytes
    why = (
        f"a checkpoint takes {human_bytes(nbytes)} on this host, and two must fit, {human_bytes(needed)}: "
        "the newest complete one stays while the next is written"
    )
    if needed > settings.budget_nbytes:
        raise UsageError(
            f"InMemory.budget_nbytes={settings.budget_nbytes} is {human_bytes(settings.budget_nbytes)}, but "
            f"{why}. Give at least budget_nbytes={needed}, or no InMemory."
        )
    stats = os.statvfs(directory.path)
    size = stats.f_blocks * stats.f_frsize
    if needed > size:
        raise UsageError(
            f"{settings.directory} holds {human_bytes(size)}, but {why}. Make it larger (a container's with "
            "`docker run --shm-size`, a pod's with an emptyDir of `medium: Memory`), or give another "
            "directory in memory, InMemory(directory=…)."
        )


def steps_to_remove(
    steps: Mapping[int, int], complete: int | None, nbytes: int, budget_nbytes: int
) -> list[int]:
    """Return the checkpoints of a host that are removed before one more is written.

    Those that no restart could use go: newer than the newest one that is complete on all hosts. Then the
    oldest, until one more fits. The newest complete one stays. A checkpoint of a start with other processes
    on this host may have another size.

    Example:
      >>> from meshwright.checkpoints._host_memory._budget import steps_to_remove
      >>> steps_to_remove({10: 100, 20: 100, 30: 100, 40: 100}, complete=30, nbytes=100, budget_nbytes=300)
      [10, 40]
    """
    usable = sorted((step for step in steps if complete is not None and step <= complete), reverse=True)
    kept_steps, remaining_nbytes = (
        set(usable[:1]),
        budget_nbytes - nbytes - sum(steps[step] for step in usable[:1]),
    )
    for step in usable[1:]:
        remaining_nbytes -= steps[step]
        if remaining_nbytes < 0:
            break
        kept_steps.add(step)
    return sorted(set(steps) - kept_steps)


def sizes(directory: Path, steps: Sequence[int]) -> dict[int, int]:
    """Return the bytes of the data files of checkpoints, by step."""
    files_by_step = {step: (directory / step_name(step)).glob("data-*") for step in steps}
    return {step: sum(file.stat().st_size for file in files) for step, files in files_by_step.items()}


def free_nbytes(path: Path) -> int:
    """Return the bytes that can still be written to a directory's file system."""
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize
