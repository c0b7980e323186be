"""The messages between the launchers of several machines, and the rules by which an agent follows the leader.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

LEASE_SECONDS = 10.0
LOST_SECONDS = 15.0
"""The lease, with the drift between two clocks and the time to kill the processes added."""
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
    """The state of an agent, as a message to the leader."""

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
    """True if processes run, or have yet to be killed."""
    ended: tuple[End, ...] = ()
    """The processes of that generation that have ended by themselves, in order, after all have ended."""
    saved: int | None = None
    """Step of the newest checkpoint, as process 0 has reported it; None on the other machines."""
    is_over: bool = False
    """True if the agent has heard that the run is over."""
    signal: int = 0
    """The signal with which the agent was told to stop; 0 for none."""


@dataclass(frozen=True)
class Order:
    """The leader's answer to a status: run a generation, leave with an exit code, or rest."""

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


@dataclass(frozen=True)
class Agent:
    """The state of an agent."""

    status: Status
    """Its message to the leader."""
    order: Order | None = None
    """The order under which processes run; None if none shall run."""
    lease_until: float = float("-inf")
    """Time on its own clock until which its orders hold."""
    last: Order | None = None
    """The order with which the run was over; None before."""


def on_order(agent: Agent, order: Order, current_time: float) -> Agent:
    """Return the state of an agent after an order.

    Orders that answer a status from before the lease are late, and ignored; so are those of a generation
    that is older than the newest one.
    """
    mine = agent.status
    if order.answers + LEASE_SECONDS < current_time or order.generation < mine.generation:
        return agent
    agent = replace(agent, lease_until=max(agent.lease_until, order.answers + LEASE_SECONDS))
    if order.exit_code is not None:
        return replace(agent, order=None, last=order, status=replace(mine, is_over=True))
    is_same = (order.generation, order.leader) == (mine.generation, mine.leader)
    if not any(name == mine.agent for name, _ in order.members):
        return _resting(agent, order)
    # The agent runs this generation already, or its processes have ended.
    if is_same:
        return replace(agent, order=order) if agent.order else agent
    # Processes of an older generation must be dead before those of a newer one start.
    if mine.is_running or order.generation == mine.generation:
        return replace(agent, order=None)
    return replace(agent, order=order, status=replace(_following(mine, order), is_running=True))


def on_time(agent: Agent, current_time: float) -> Agent:
    """Return the state of an agent as time passes: without an order after the lease."""
    return replace(agent, order=None) if agent.order and current_time > agent.lease_until else agent


def on_ends(agent: Agent, ends: Sequence[End], saved: int | None) -> Agent:
    """Return the state of an agent after all its processes have ended."""
    status = replace(agent.status, is_running=False, ended=tuple(ends), saved=saved)
    return replace(agent, order=None, status=status)


def _resting(agent: Agent, order: Order) -> Agent:
    """Return the state after an order to run nothing. Ends are reported under the generation that ran."""
    mine = agent.status
    if mine.is_running or (order.generation, order.leader) == (mine.generation, mine.leader):
        return replace(agent, order=None)
    return replace(agent, order=None, status=_following(mine, order))


def _following(status: Status, order: Order) -> Status:
    """Return the status of an agent that has heard of a new generation."""
    num_leaders = status.num_leaders + (status.leader != order.leader)
    return replace(
        status, generation=order.generation, leader=order.leader, num_leaders=num_leaders, ended=()
    )
