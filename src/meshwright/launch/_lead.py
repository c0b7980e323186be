"""The rules by which the leader decides for the agents of all machines. Pure functions; see `_members`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from signal import SIGINT, Signals
from types import MappingProxyType

from meshwright.errors import EXIT_DONE, EXIT_OF_STOPS, EXIT_PEERS, EXIT_USAGE
from meshwright.launch._members import LEASE_SECONDS, LOST_SECONDS, End, Order, Status
from meshwright.launch._outcome import Restarts, causes, code_of, has_failed, stop_of, summary

# Exit code of a generation that lost a machine, as of a process that was killed.
_EXIT_LOST = 137


class Phase(Enum):
    """The phases of a leader, each with the leader's next act."""

    GATHERING = "waits until enough machines are there, with no process running"
    RUNNING = "waits until all processes have ended, or one has failed"
    STOPPING = "waits until all machines have killed their processes"
    OVER = "tells all to leave"


@dataclass(frozen=True)
class Requirements:
    """The machines that a run needs."""

    hosts: int
    """Number of machines to start with."""
    min_hosts: int
    """Number of machines to go on with after others were lost."""
    wait_seconds: float
    """Longest time to wait for machines."""
    elsewhere_seconds: float = LOST_SECONDS
    """Time to wait for machines to come back before going on with fewer."""


@dataclass(frozen=True)
class AgentView:
    """The newest status of an agent."""

    status: Status
    heard_at: float
    """Time on the leader's clock at which it came."""
    is_gone: bool = False
    """True if the connection has ended. The processes may still run until the agent's lease ends."""


@dataclass(frozen=True)
class Leader:
    """The state of the leader."""

    name: str
    own: str
    """Name of the agent on the leader's machine, which runs process 0."""
    job: str
    requirements: Requirements
    restarts: Restarts
    born: float
    since: float
    """Time at which the phase began."""
    phase: Phase = Phase.GATHERING
    generation: int = 0
    members: tuple[str, ...] = ()
    """The agents of the newest generation, in the order of their processes."""
    order: Order | None = None
    """The order to the members of the newest generation."""
    views: Mapping[str, AgentView] = field(default_factory=lambda: MappingProxyType({}))
    has_predecessor: bool = False
    """True if an agent knew another leader: processes may run on machines that are not heard yet, and orders
    of that leader may be on their way."""
    saved: int | None = None
    exit_code: int | None = None
    text: str = ""


def on_status(leader: Leader, status: Status, current_time: float) -> Leader:
    """Return the state of the leader after a status.

    One that is older than the newest is ignored, and so is that of another program, which `order_for`
    refuses.
    """
    view = leader.views.get(status.agent)
    if status.job != leader.job or (view and view.status.sent >= status.sent):
        return leader
    newest = max((step for step in (leader.saved, status.saved) if step is not None), default=None)
    return replace(
        leader,
        views={**leader.views, status.agent: AgentView(status, current_time)},
        has_predecessor=leader.has_predecessor or status.num_leaders > (status.leader == leader.name),
        saved=newest,
    )


def on_disconnect(leader: Leader, agent: str) -> Leader:
    """Return the state of the leader after the connection to an agent has ended."""
    if agent not in leader.views:
        return leader
    return replace(leader, views={**leader.views, agent: replace(leader.views[agent], is_gone=True)})


def advance(leader: Leader, current_time: float) -> Leader:
    """Return the state of the leader after its next decision, if one is due."""
    match leader.phase:
        case Phase.GATHERING:
            return _gather(leader, current_time)
        case Phase.RUNNING:
            return _watch(leader, current_time)
        case Phase.STOPPING:
            stopped = all(
                _is_at_rest(leader, name) or _is_lost(leader, name, current_time) for name in leader.members
            )
            return _decide(leader, current_time) if stopped else leader
        case Phase.OVER:
            return leader


def order_for(leader: Leader, status: Status) -> Order:
    """Return the answer to a status."""
    # The order must not be older than the agent's own generation, or the agent would ignore it.
    newest = max(leader.generation, status.generation)
    if status.job != leader.job:
        text = _other_job(status)
        return Order(leader.name, status.sent, newest, exit_code=EXIT_USAGE, text=text)
    if leader.phase is Phase.OVER:
        return Order(leader.name, status.sent, newest, exit_code=leader.exit_code, text=leader.text)
    if leader.phase is Phase.RUNNING and leader.order and not (status.signal and _is_spare(leader, status)):
        signal = _stop_of(leader) if _is_to_stop(leader) else 0
        return replace(leader.order, answers=status.sent, signal=signal)
    # The machine was told to stop, and leaves.
    if leader.phase is not Phase.STOPPING and status.signal and not status.is_running:
        code = max((end.exit_code for end in status.ended), default=0)
        due = code if code > 0 else EXIT_OF_STOPS[status.signal]
        return Order(leader.name, status.sent, newest, exit_code=due)
    return Order(leader.name, status.sent, leader.generation)


def is_done(leader: Leader, current_time: float) -> bool:
    """Return whether all agents that can be heard know that the run is over."""
    if leader.phase is not Phase.OVER:
        return False
    return all(
        view.status.is_over or view.is_gone or _is_lost(leader, name, current_time)
        for name, view in leader.views.items()
    )


def _gather(leader: Leader, current_time: float) -> Leader:
    """Start a generation if the machines for it are there."""
    if _is_to_stop(leader):
        return _over(leader, current_time, EXIT_OF_STOPS[_stop_of(leader)], "")
    others = [view.status for view in leader.views.values() if _is_of_another(leader, view.status)]
    if (newest := max((status.generation for status in others), default=-1)) >= leader.generation:
        return replace(leader, generation=newest + 1)
    waited = current_time - leader.since
    present = [name for name in leader.views if _is_present(leader, name, current_time)]
    count = len(present)
    enough = count >= leader.requirements.hosts or (
        leader.members
        and waited > leader.requirements.elsewhere_seconds
        and count >= leader.requirements.min_hosts
    )
    if not enough:
        too_long = waited > leader.requirements.wait_seconds
        return _over(leader, current_time, EXIT_PEERS, _missing(leader, present)) if too_long else leader
    ready = leader.own in present and all(_is_ready(leader, name) for name in present)
    # A leader that was started again does not know which processes run under its predecessor. It waits
    # until their leases are over.
    is_safe = current_time - leader.born > LOST_SECONDS or (
        not leader.has_predecessor and (leader.members or count >= leader.requirements.hosts)
    )
    others_rest = all(
        name in present or not view.status.is_running or _is_lost(leader, name, current_time)
        for name, view in leader.views.items()
    )
    return _start(leader, current_time, present) if ready and is_safe and others_rest else leader


def _start(leader: Leader, current_time: float, present: list[str]) -> Leader:
    # The leader's own machine comes first, as process 0 runs there.
    names = sorted(present, key=lambda name: (name != leader.own, leader.views[name].status.host, name))
    statuses = [leader.views[name].status for name in names[: leader.requirements.hosts]]
    generation = leader.generation + 1
    order = Order(
        leader.name,
        answers=0,
        generation=generation,
        members=tuple((status.agent, status.num_processes) for status in statuses),
        address=statuses[0].address,
    )
    members = tuple(status.agent for status in statuses)
    phase = Phase.RUNNING
    return replace(
        leader, phase=phase, since=current_time, generation=generation, members=members, order=order
    )


def _watch(leader: Leader, current_time: float) -> Leader:
    """Notice that all processes have ended, or that the generation cannot go on."""
    if all(_has_ended(leader, name) for name in leader.members):
        return _decide(leader, current_time)
    is_broken = any(
        leader.views[name].is_gone
        or _is_lost(leader, name, current_time)
        or (_has_ended(leader, name) and _has_failed(leader, name))
        for name in leader.members
    )
    return replace(leader, phase=Phase.STOPPING, since=current_time) if is_broken else leader


def _decide(leader: Leader, current_time: float) -> Leader:
    """Decide after the end of a generation whether there is another one."""
    code, text = _outcome(leader, current_time)
    more = None if _is_to_stop(leader) else leader.restarts.after_end(code, leader.saved)
    if more is None:
        return _over(leader, current_time, code, text)
    return replace(leader, phase=Phase.GATHERING, since=current_time, restarts=more, text=text)


def _outcome(leader: Leader, current_time: float) -> tuple[int, str]:
    """Return the exit code of the generation that has ended, and the summary if it failed."""
    silent = [
        name for name in leader.members if leader.views[name].is_gone or _is_lost(leader, name, current_time)
    ]
    if silent := [name for name in silent if not _has_all_ended(leader, name)]:
        lost = ", ".join(sorted(leader.views[name].status.host for name in silent))
        return _EXIT_LOST, f"the launcher on {lost} is gone, or cannot be reached"
    members = leader.order.members if leader.order else ()
    hosts = [leader.views[name].status.host for name, count in members for _ in range(count)]
    ends = [
        end for name in leader.members if _has_ended(leader, name) for end in leader.views[name].status.ended
    ]
    ran = {end.number: end for end in ends}
    every = [ran.get(number) or End(number, host, 0) for number, host in enumerate(hosts)]
    killed = [end for end in every if end.number not in ran]
    stop = stop_of(ends, [_stop_of(leader)])
    if failed := causes(ends, killed, stop):
        # The processes that failed come first.
        ends = sorted(ends, key=lambda end: end not in failed)
        return code_of(ends, killed), summary(every, ends, leader.saved)
    if killed:
        return (
            _EXIT_LOST,
            f"a machine heard nothing of this one for {LEASE_SECONDS:g} s, and killed its processes",
        )
    return EXIT_OF_STOPS[Signals(stop)] if any(end.exit_code for end in ends) else EXIT_DONE, ""


def _over(leader: Leader, current_time: float, exit_code: int, text: str) -> Leader:
    return replace(leader, phase=Phase.OVER, since=current_time, exit_code=exit_code, text=text)


def _is_lost(leader: Leader, name: str, current_time: float) -> bool:
    """Return whether an agent has been silent for so long that its processes are dead."""
    return current_time - leader.views[name].heard_at > LOST_SECONDS


def _is_present(leader: Leader, name: str, current_time: float) -> bool:
    view = leader.views[name]
    stays = not view.status.signal and not view.status.is_over
    return stays and not view.is_gone and not _is_lost(leader, name, current_time)


def _is_ready(leader: Leader, name: str) -> bool:
    """Return whether an agent runs nothing, and will ignore all older orders."""
    status = leader.views[name].status
    is_mine = (status.generation, status.leader) == (leader.generation, leader.name)
    return not status.is_running and is_mine


def _has_ended(leader: Leader, name: str) -> bool:
    """Return whether all processes of an agent have ended in the newest generation."""
    generation = leader.order.generation if leader.order else 0
    status = leader.views[name].status
    return not status.is_running and (status.generation, status.leader) == (generation, leader.name)


def _is_at_rest(leader: Leader, name: str) -> bool:
    """Return whether an agent runs nothing of the newest generation, and will not begin to."""
    status = leader.views[name].status
    return not status.is_running and status.leader == leader.name and status.generation >= leader.generation


def _has_all_ended(leader: Leader, name: str) -> bool:
    status = leader.views[name].status
    return _has_ended(leader, name) and len(status.ended) == status.num_processes


def _has_failed(leader: Leader, name: str) -> bool:
    return not _has_all_ended(leader, name) or any(has_failed(end) for end in leader.views[name].status.ended)


def _is_of_another(leader: Leader, status: Status) -> bool:
    """Return whether an agent has followed another leader, and not yet this one."""
    return status.generation > 0 and status.leader != leader.name


def _is_spare(leader: Leader, status: Status) -> bool:
    """Return whether an agent has no part in the newest generation."""
    return bool(leader.members) and status.agent not in leader.members


def _is_to_stop(leader: Leader) -> bool:
    """Return whether the run ends because machines were told to stop.

    Ctrl-C on any machine ends it, as does any signal on that of the leader. A machine that gets SIGTERM
    leaves, and the others go on if they are enough.
    """
    stopping = _told_to_stop(leader)
    leaving = [status for status in stopping if not _is_spare(leader, status)]
    too_few = bool(leaving) and leader.requirements.hosts - len(leaving) < leader.requirements.min_hosts
    return too_few or any(status.signal == SIGINT or status.agent == leader.own for status in stopping)


def _stop_of(leader: Leader) -> int:
    """Return the signal with which a machine was told to stop; 2 before all others; 0 for none."""
    return min((status.signal for status in _told_to_stop(leader)), default=0)


def _told_to_stop(leader: Leader) -> list[Status]:
    """Return the agents that were told to stop, without those that left before the newest generation."""
    return [
        view.status
        for name, view in leader.views.items()
        if view.status.signal and (name in leader.members or not view.is_gone)
    ]


def _missing(leader: Leader, present: list[str]) -> str:
    hosts = ", ".join(sorted(leader.views[name].status.host for name in present)) or "none"
    return (
        f"{len(present)} of {leader.requirements.hosts} machines came within "
        f"{leader.requirements.wait_seconds:g} s: {hosts}. Run the same command on the others, or raise "
        "--wait."
    )


def _other_job(status: Status) -> str:
    return (
        f"the launcher on {status.host} was given another program or other options than that on the machine "
        "of --at. Give the same command on all machines. Two runs on one machine need two ports."
    )
