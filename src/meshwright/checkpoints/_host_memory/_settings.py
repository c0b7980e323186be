"""The settings of checkpoints in memory."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meshwright.base._internal import documented
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
