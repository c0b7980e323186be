"""A run as a job for a scheduler: the program, and how many processes on how many machines."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import UsageError


@dataclass(frozen=True)
class Job:
    """A program that a scheduler starts as several processes.

    Example:
      >>> job = mw.launch._internal.Job(("python", "train.py"), num_processes=4, processes_per_host=2)
      >>> job.num_hosts
      2
    """

    command: Sequence[str]
    """The program and its arguments."""
    num_processes: int = 1
    """Number of processes, on all machines together."""
    processes_per_host: int = 1
    """Number of processes on each machine."""
    name: str = "train"
    """Name of the job: lower-case letters, digits and `-`, which begins with a letter."""
    restarts: int = 3
    """Largest number of restarts in a row without a newer checkpoint between them."""
    save_seconds: int = 120
    """Seconds that the processes need to save and end after they are told to stop."""

    def __post_init__(self) -> None:
        """Check the fields."""
        if not self.command:
            raise UsageError(
                "launch: there is no program to start. Write it after --: -n 2 -- python train.py"
            )
        for option, value, least in (
            ("-n", self.num_processes, 1),
            ("--processes-per-host", self.processes_per_host, 1),
            ("--restarts", self.restarts, 0),
            ("--save-seconds", self.save_seconds, 1),
        ):
            if value < least:
                raise UsageError(f"launch: {option} is {value}; it must be at least {least}.")
        if self.num_processes % self.processes_per_host:
            raise UsageError(
                f"launch: {self.num_processes} processes (-n) cannot be divided evenly into hosts of "
                f"{self.processes_per_host} (--processes-per-host). All hosts get the same number."
            )
        if not re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", self.name):
            raise UsageError(
                f"launch: --name is {self.name!r}; expected lower-case letters, digits and -, beginning with "
                "a letter, such as llama-7b."
            )

    @property
    def num_hosts(self) -> int:
        """Number of machines."""
        return math.ceil(self.num_processes / self.processes_per_host)

    def shell_command(self) -> str:
        """Return the program and its arguments as one line for a shell."""
        return shlex.join(self.command)


def name_of(command: Sequence[str]) -> str:
    """Return a name for the job of a command: that of its first file or function, such as `train`."""
    words = [word for word in command[1:] if re.search(r"\.py\b|^[\w.]+:\w+$", word)]
    module = Path(words[0].partition(":")[0]).name.removesuffix(".py") if words else "train"
    name = re.sub("[^a-z0-9]+", "-", module.rpartition(".")[2].lower()).strip("-")
    return name if re.match("[a-z]", name) else "train"
