"""Start the processes of a run on several machines without a scheduler: the same command on each of them.

The machine with the given address leads. `_lead` and `_members` have the rules, `_link` the connections.
"""

import contextlib
import hashlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright._version import __version__
from meshwright.base._internal import local_path
from meshwright.errors import EXIT_PEERS, UsageError
from meshwright.launch import _members
from meshwright.launch._lead import Leader, Phase, Requirements
from meshwright.launch._link import AgentClient, LeaderServer, listening, own_address, split
from meshwright.launch._local import GRACE_SECONDS, LocalSpawner, check_command, free_port, scratch
from meshwright.launch._members import LOST_SECONDS, Agent, End, Order, Status
from meshwright.launch._outcome import Restarts
from meshwright.launch._output import Output
from meshwright.launch._supervise import (
    Attempt,
    Running,
    attempt_on,
    check,
    grace_of,
    passing_on_signals,
    say,
)

_POLL_SECONDS = 0.05


def launch_hosts(
    command: Sequence[str],
    num_processes: int,
    *,
    address: str,
    hosts: int,
    min_hosts: int | None = None,
    devices_per_process: int | None = None,
    wait_seconds: float = 300,
    grace_seconds: float = GRACE_SECONDS,
    restarts: int = 3,
    logs: str | Path | None = None,
) -> int:
    """Run `command` on several machines, each of which calls this; return one exit code for all.

    The machine with the address `address` leads: process 0 runs there, it decides on new starts, and its end
    ends the run. A machine that is lost, or whose processes fail, ends the processes on all machines, and all
    start again together. If a machine is lost and does not come back within 15 s, the others go on without
    it if they are at least `min_hosts`; it takes part again from the next start on. A machine that gets
    SIGTERM leaves in the same way; Ctrl-C on any machine ends the run.

    Who can reach the port and knows the command can disturb the run, so let only the machines reach it, or
    set MESHWRIGHT_TOKEN to one random text on all of them. What comes over the network is never executed:
    each machine runs its own `command`. The run directory must be on a disk that all machines see, or in a
    store. Call this on the main thread.

    Returns:
      As `launch_local`; 137 if a machine was lost, 6 if machines did not come or the leader is gone.

    Example:
      >>> import socket, sys
      >>> with socket.create_server(("127.0.0.1", 0)) as server:
      ...     address = f"127.0.0.1:{server.getsockname()[1]}"  # a free port of this machine
      >>> mw.launch._internal.launch_hosts([sys.executable, "-c", "pass"], 1, address=address, hosts=1)
      0
    """
    check(grace_seconds, num_processes, restarts, None)
    check_command(command)
    requirements = _requirements(hosts, min_hosts, wait_seconds)
    leader_address, directory_of_logs = split(address), local_path(logs) if logs else None
    shared = __version__, tuple(command), requirements, restarts, os.environ.get("MESHWRIGHT_TOKEN", "")
    job = hashlib.sha256(repr(shared).encode()).hexdigest()[:32]
    # An agent that starts again must not be taken for the one before it.
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    free = f"{own_address(leader_address)}:{free_port()}"
    status = Status(name, socket.gethostname(), job, time.monotonic(), num_processes, free)
    with (
        scratch() as directory,
        _leading(leader_address, status, requirements, restarts),
        Output(hosts * num_processes, directory_of_logs) as output,
        passing_on_signals() as running,
    ):
        start = _Start(
            tuple(command), devices_per_process, Path(directory, "progress"), grace_seconds, restarts
        )
        member = AgentClient(Agent(status), leader_address)
        with contextlib.closing(member):
            return _serve(member, start, running, output, wait_seconds)


@dataclass(frozen=True)
class _Start:
    """The program of this machine, and the settings of its processes."""

    command: Sequence[str]
    devices_per_process: int | None
    progress: Path
    grace_seconds: float
    restarts: int


def _requirements(hosts: int, min_hosts: int | None, wait_seconds: float) -> Requirements:
    if hosts < 1:
        raise UsageError(f"launch hosts: --hosts is {hosts}; it must be at least 1.")
    if min_hosts is not None and not 1 <= min_hosts <= hosts:
        raise UsageError(
            f"launch hosts: --min-hosts is {min_hosts}; it must be from 1 to {hosts}, as --hosts."
        )
    if not wait_seconds > 0:
        raise UsageError(f"launch hosts: --wait is {wait_seconds:g} seconds; it must be positive.")
    return Requirements(hosts, hosts if min_hosts is None else min_hosts, wait_seconds)


@contextlib.contextmanager
def _leading(
    address: tuple[str, int], own: Status, requirements: Requirements, restarts: int
) -> Iterator[None]:
    """Lead if this machine has the address. At the end, stay until the other machines know of it."""
    server = listening(address)
    if server is None:
        yield
        return
    current_time = time.monotonic()
    name = f"leader of {own.agent}"
    leader = Leader(
        name, own.agent, own.job, requirements, Restarts(restarts), born=current_time, since=current_time
    )
    if requirements.hosts > 1:
        say(
            f"this machine leads; machines to wait for at {address[0]}:{address[1]}: {requirements.hosts - 1}"
        )
    seat = LeaderServer(server, leader, _print_decision)
    try:
        yield
    finally:
        seat.close()


def _print_decision(previous: Leader, leader: Leader) -> None:
    """Print a decision of the leader. The last one is printed on every machine."""
    if leader.phase is Phase.RUNNING and leader.order and previous.phase is not Phase.RUNNING:
        hosts = ", ".join(dict.fromkeys(leader.views[name].status.host for name in leader.members))
        again = f"; restart {leader.restarts.used} of {leader.restarts.allowed}" if previous.members else ""
        say(f"starting {leader.order.num_processes} processes on {hosts}{again}")
    if leader.phase is Phase.GATHERING and previous.phase is not Phase.GATHERING and leader.text:
        say(leader.text)


def _serve(member: AgentClient, start: _Start, running: Running, output: Output, wait_seconds: float) -> int:
    """Do what the leader orders until the run is over, and return the exit code."""
    while True:
        agent = member.change(_members.on_time, time.monotonic())
        if running.received and not agent.status.signal:
            agent = member.change(_signalled, running.received[0])
        if agent.last is not None:
            if agent.last.text:
                say(agent.last.text)
            return agent.last.exit_code or 0
        if agent.order is not None:
            attempt = _run(member, agent.order, start, running, output)
            member.change(_members.on_ends, *_report(attempt, agent.order, agent.status))
            # A process of the last generation may not have closed its port yet.
            member.change(_with_address, f"{own_address(member.address)}:{free_port()}")
            continue
        silent_seconds = time.monotonic() - member.heard_at
        if running.received and (len(running.received) > 1 or silent_seconds > LOST_SECONDS):
            return 128 + running.received[0]
        if silent_seconds > wait_seconds:
            host, port = member.address
            say(
                f"heard nothing of a launcher at {host}:{port} for {wait_seconds:g} s. Is it started there, "
                "and can its port be reached from here?"
            )
            return EXIT_PEERS
        time.sleep(_POLL_SECONDS)


def _run(member: AgentClient, order: Order, start: _Start, running: Running, output: Output) -> Attempt:
    """Run the processes of this machine until they have ended, or the leader or the lease ends them."""
    status = member.agent.status
    first = order.first(status.agent)
    spawner = LocalSpawner(
        start.command,
        order.num_processes,
        start.devices_per_process,
        start.progress,
        order.address,
        first,
        token=status.job,
    )

    def is_wanted() -> bool:
        if running.received and not member.agent.status.signal:
            member.change(_signalled, running.received[0])
        order = member.change(_members.on_time, time.monotonic()).order
        if order and order.signal and not running.received:
            # The signal came on another machine, and counts as if it had come here.
            signal.raise_signal(order.signal)
        return order is not None

    numbers = range(first, first + status.num_processes)
    return attempt_on(
        spawner, numbers, running, output, grace_of(start.grace_seconds, start.restarts), is_wanted
    )


def _report(attempt: Attempt, order: Order, status: Status) -> tuple[tuple[End, ...], int | None]:
    ends = tuple(
        End(process.number, process.host, process.exit_code, tuple(process.last_lines))
        for process in attempt.ended
    )
    return ends, attempt.saved if order.first(status.agent) == 0 else None


def _with_address(agent: Agent, address: str) -> Agent:
    return replace(agent, status=replace(agent.status, address=address))


def _signalled(agent: Agent, number: int) -> Agent:
    return replace(agent, status=replace(agent.status, signal=number))
