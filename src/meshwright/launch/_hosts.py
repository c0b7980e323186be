"""Start the processes of a run on several machines without a scheduler: the same command on each of them.

One machine leads, that with the given address. `_lead` and `_follow` have the rules, `_link` the connections.
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
from meshwright.launch import _follow
from meshwright.launch._lead import Leader, Phase, Wanted
from meshwright.launch._link import Member, Seat, listening, own_address, split
from meshwright.launch._local import GRACE_SECONDS, Here, check_command, free_port, scratch
from meshwright.launch._members import LOST_SECONDS, End, Order, Status
from meshwright.launch._output import Output
from meshwright.launch._restarts import Restarts
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
    at: str,
    hosts: int,
    min_hosts: int | None = None,
    devices_per_process: int | None = None,
    wait_seconds: float = 300,
    grace_seconds: float = GRACE_SECONDS,
    restarts: int = 3,
    logs: str | Path | None = None,
) -> int:
    """Run `command` on several machines, each of which calls this; return one exit code for all.

    The machine that has the address `at` leads: process 0 runs there, it decides on new starts, and its end
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
      ...     at = f"127.0.0.1:{server.getsockname()[1]}"  # a free port of this machine
      >>> mw.launch._internal.launch_hosts([sys.executable, "-c", "pass"], 1, at=at, hosts=1)
      0
    """
    check(grace_seconds, num_processes, restarts, None)
    check_command(command)
    wanted = _wanted(hosts, min_hosts, wait_seconds)
    address, directory_of_logs = split(at), local_path(logs) if logs else None
    shared = __version__, tuple(command), wanted, restarts, os.environ.get("MESHWRIGHT_TOKEN", "")
    job = hashlib.sha256(repr(shared).encode()).hexdigest()[:32]
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    free = f"{own_address(address)}:{free_port()}"
    status = Status(name, socket.gethostname(), job, time.monotonic(), num_processes, free)
    with (
        scratch() as directory,
        _leading(address, status, wanted, restarts),
        Output(hosts * num_processes, directory_of_logs) as output,
        passing_on_signals() as running,
    ):
        start = _Start(
            tuple(command), devices_per_process, Path(directory, "progress"), grace_seconds, restarts
        )
        member = Member(_follow.Agent(status), address)
        with contextlib.closing(member):
            return _serve(member, start, running, output, wait_seconds)


@dataclass(frozen=True)
class _Start:
    """What this machine starts."""

    command: Sequence[str]
    devices_per_process: int | None
    progress: Path
    grace_seconds: float
    restarts: int


def _wanted(hosts: int, min_hosts: int | None, wait_seconds: float) -> Wanted:
    if hosts < 1:
        raise UsageError(f"launch hosts: --hosts is {hosts}; it must be at least 1.")
    if min_hosts is not None and not 1 <= min_hosts <= hosts:
        raise UsageError(
            f"launch hosts: --min-hosts is {min_hosts}; it must be from 1 to {hosts}, as --hosts."
        )
    if not wait_seconds > 0:
        raise UsageError(f"launch hosts: --wait is {wait_seconds:g} seconds; it must be positive.")
    return Wanted(hosts, hosts if min_hosts is None else min_hosts, wait_seconds)


@contextlib.contextmanager
def _leading(address: tuple[str, int], own: Status, wanted: Wanted, restarts: int) -> Iterator[None]:
    """Lead if this machine has the address. At the end, stay until the other machines know of it."""
    server = listening(address)
    if server is None:
        yield
        return
    now = time.monotonic()
    name = f"leader of {own.agent}"
    leader = Leader(name, own.agent, own.job, wanted, Restarts(restarts), born=now, since=now)
    if wanted.hosts > 1:
        say(f"this machine leads; machines to wait for at {address[0]}:{address[1]}: {wanted.hosts - 1}")
    seat = Seat(server, leader, _tell)
    try:
        yield
    finally:
        seat.close()


def _tell(before: Leader, after: Leader) -> None:
    """Print a decision of the leader. The last one is printed on every machine."""
    if after.phase is Phase.RUNNING and after.order and before.phase is not Phase.RUNNING:
        hosts = ", ".join(dict.fromkeys(after.seen[name].status.host for name in after.members))
        again = f"; restart {after.restarts.used} of {after.restarts.allowed}" if before.members else ""
        say(f"starting {after.order.num_processes} processes on {hosts}{again}")
    if after.phase is Phase.GATHERING and before.phase is not Phase.GATHERING and after.text:
        say(after.text)


def _serve(member: Member, start: _Start, running: Running, output: Output, wait_seconds: float) -> int:
    """Do what the leader orders until the run is over, and return the exit code."""
    while True:
        agent = member.change(_follow.passed, time.monotonic())
        if running.received and not agent.status.signal:
            agent = member.change(_signalled, running.received[0])
        if agent.last is not None:
            if agent.last.text:
                say(agent.last.text)
            return agent.last.exit_code or 0
        if agent.order is not None:
            attempt = _run(member, agent.order, start, running, output)
            member.change(_follow.ended, *_report(attempt, agent.order, agent.status))
            # A process of the last generation may not have closed its port yet.
            member.change(_with_address, f"{own_address(member.at)}:{free_port()}")
            continue
        silent_seconds = time.monotonic() - member.heard_at
        if running.received and (len(running.received) > 1 or silent_seconds > LOST_SECONDS):
            return 128 + running.received[0]
        if silent_seconds > wait_seconds:
            host, port = member.at
            say(
                f"heard nothing of a launcher at {host}:{port} for {wait_seconds:g} s. Is it started there, "
                "and can its port be reached from here?"
            )
            return EXIT_PEERS
        time.sleep(_POLL_SECONDS)


def _run(member: Member, order: Order, start: _Start, running: Running, output: Output) -> Attempt:
    """Run the processes of this machine until they have ended, or the leader or the lease ends them."""
    status = member.agent.status
    first = order.first(status.agent)
    place = Here(
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
        now = member.change(_follow.passed, time.monotonic()).order
        if now and now.signal and not running.received:
            signal.raise_signal(now.signal)  # as if it had come here
        return now is not None

    numbers = range(first, first + status.num_processes)
    return attempt_on(
        place, numbers, running, output, grace_of(start.grace_seconds, start.restarts), is_wanted
    )


def _report(attempt: Attempt, order: Order, status: Status) -> tuple[tuple[End, ...], int | None]:
    ends = tuple(End(one.number, one.host, one.exit_code, tuple(one.last_lines)) for one in attempt.ended)
    return ends, attempt.saved if order.first(status.agent) == 0 else None


def _with_address(agent: _follow.Agent, address: str) -> _follow.Agent:
    return replace(agent, status=replace(agent.status, address=address))


def _signalled(agent: _follow.Agent, number: int) -> _follow.Agent:
    return replace(agent, status=replace(agent.status, signal=number))
