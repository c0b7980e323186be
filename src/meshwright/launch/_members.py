"""What the launchers of several machines tell each other.

Each machine has an agent, which starts and ends the processes there. One machine also has the leader, which
decides. An agent sends its `Status` again and again, and the leader answers each with an `Order`. Both say
everything that the sender knows, so a message that is lost is made good by the next one, and one that comes
twice changes nothing.

Each start of all processes is a *generation*, with a number that only grows. An order holds for
`LEASE_SECONDS` from the moment in which the agent sent the status that it answers: an agent that hears
nothing for so long kills its processes. The leader counts an agent as lost only after `LOST_SECONDS`, which
is longer. So the processes of two generations never run at the same time, even where the network fails. Only
durations are compared, each by the clock of one machine.

It is assumed that no more machines than `hosts` have an agent, and that the processes of an agent die with
it. `tests/agents.py` simulates all this.
"""

from dataclasses import dataclass
from itertools import takewhile

LEASE_SECONDS = 10.0
LOST_SECONDS = 15.0
"""Larger than the lease by what clocks may differ in speed, and by the time that killing takes."""
BEAT_SECONDS = 1.0
"""Time between two statuses of an agent."""


@dataclass(frozen=True)
class End:
    """The end of one process."""

    number: int
    host: str
    exit_code: int
    """-n if signal n ended it."""
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """What an agent says of itself."""

    agent: str
    """A name that no other agent has, and no earlier one on the same machine."""
    host: str
    job: str
    """Digest of the program and the options, which must be the same on all machines."""
    sent: float
    """Time on the clock of the agent. It grows from each status to the next."""
    num_processes: int
    address: str
    """`host:port` at which process 0 could listen."""
    generation: int = 0
    """The newest generation that the agent has heard of; 0 before the first order."""
    leader: str = ""
    """The leader of that generation."""
    num_leaders: int = 0
    """Number of leaders that the agent has followed."""
    is_running: bool = False
    """Whether processes run, or have yet to be killed."""
    ended: tuple[End, ...] = ()
    """The processes of that generation that have ended by themselves, in order, after all have ended."""
    saved: int | None = None
    """Step of the newest checkpoint, as process 0 has reported it; None on the other machines."""
    is_over: bool = False
    """Whether the agent has heard that the run is over."""
    signal: int = 0
    """The signal with which the agent was told to stop; 0 for none."""


@dataclass(frozen=True)
class Order:
    """What the leader wants an agent to do: to run a generation, to leave with an exit code, or to rest."""

    leader: str
    answers: float
    """`sent` of the status that this answers."""
    generation: int
    members: tuple[tuple[str, int], ...] = ()
    """The agents that run this generation, with the number of processes of each; empty if none shall run."""
    address: str = ""
    """`host:port` at which process 0 listens."""
    signal: int = 0
    """The signal to pass on to the processes, as the run was told to stop; 0 for none."""
    exit_code: int | None = None
    """The exit code of all if the run is over."""
    text: str = ""
    """The reason, for people."""

    def first(self, agent: str) -> int:
        """Return the number of the first process of an agent."""
        return sum(number for _, number in takewhile(lambda member: member[0] != agent, self.members))

    @property
    def num_processes(self) -> int:
        """Number of processes on all machines."""
        return sum(number for _, number in self.members)
