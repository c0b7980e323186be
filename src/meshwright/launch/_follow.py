"""The rules by which an agent follows the leader. Pure functions; `_members` has the messages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.launch._members import LEASE_SECONDS, End, Order, Status


@dataclass(frozen=True)
class Agent:
    """The state of an agent."""

    status: Status
    """What it says of itself."""
    order: Order | None = None
    """The order under which processes run; None if none shall run."""
    lease_until: float = float("-inf")
    """Time on its own clock until which its orders hold."""
    last: Order | None = None
    """The order with which the run was over; None before."""


def heard(agent: Agent, order: Order, now: float) -> Agent:
    """Return the state of an agent after an order.

    Orders that answer a status from before the lease are late, and ignored; so are those of a generation
    that is older than the newest one.
    """
    mine = agent.status
    if order.answers + LEASE_SECONDS < now or order.generation < mine.generation:
        return agent
    agent = replace(agent, lease_until=max(agent.lease_until, order.answers + LEASE_SECONDS))
    if order.exit_code is not None:
        return replace(agent, order=None, last=order, status=replace(mine, is_over=True))
    is_same = (order.generation, order.leader) == (mine.generation, mine.leader)
    if not any(name == mine.agent for name, _ in order.members):
        return _resting(agent, order)
    if is_same:  # it runs already, or has ended
        return replace(agent, order=order) if agent.order else agent
    if mine.is_running or order.generation == mine.generation:
        return replace(agent, order=None)
    return replace(agent, order=order, status=replace(_following(mine, order), is_running=True))


def passed(agent: Agent, now: float) -> Agent:
    """Return the state of an agent as time passes: without an order after the lease."""
    return replace(agent, order=None) if agent.order and now > agent.lease_until else agent


def ended(agent: Agent, ends: Sequence[End], saved: int | None) -> Agent:
    """Return the state of an agent after all its processes have ended."""
    status = replace(agent.status, is_running=False, ended=tuple(ends), saved=saved)
    return replace(agent, order=None, status=status)


def _resting(agent: Agent, order: Order) -> Agent:
    """Return the state after an order to run nothing. What ran is reported under its own generation."""
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
