"""Supervision of the processes of a run, wherever they are: their signals, their ends, and new starts."""

import contextlib
import math
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from meshwright.base._internal import allow_files_of, print_line
from meshwright.errors import EXIT_DONE, EXIT_OF_STOPS, UsageError
from meshwright.launch._outcome import SAVED, Restarts, causes, code_of, has_failed, stop_of, summary
from meshwright.launch._output import Output, numbers_text
from meshwright.launch._process import News, Outcome, Process, Spawner

# Longest wait of the main thread. Python does not wake it for a signal that arrives just before the wait,
# or that another thread receives; it handles such a signal after the wait.
_LONGEST_WAIT_SECONDS = 0.2
# Time to wait for the last output of killed processes.
_DRAIN_SECONDS = 2
# Time to wait for the cause before a restart: a survivor may be seen to end before the process that died.
_CAUSE_SECONDS = 0.3


@dataclass(frozen=True)
class Running:
    """The processes that run now, and what the launcher hears."""

    processes: list[Process] = field(default_factory=list)
    news: News = field(default_factory=queue.SimpleQueue)
    received: list[int] = field(default_factory=list)
    """The signals that the launcher has received."""


@dataclass(frozen=True)
class Attempt:
    """The result of one start of all processes."""

    processes: Sequence[Process]
    ended: Sequence[Process]
    """The processes that ended by themselves, in the order of their ends."""
    saved: int | None
    """Step of the newest checkpoint of all attempts; None if there is none."""

    @property
    def silent(self) -> list[Process]:
        """The processes that did not end by themselves."""
        return [process for process in self.processes if process not in self.ended]


@dataclass(frozen=True)
class Grace:
    """The seconds that processes have to end before they are killed."""

    after_signal: float
    """After SIGTERM."""
    after_failure: float
    """After one of them has failed."""


def supervise(
    place_for: Callable[[int, Callable[[], bool]], AbstractContextManager[Spawner]],
    num_processes: int,
    *,
    grace_seconds: float,
    restarts: int,
    min_processes: int | None,
    logs: Path | None,
    before_restart: Callable[[str], None] = lambda why: None,
) -> int:
    """Start all processes, again after failures, and return one exit code for all."""
    remaining, newest = Restarts(restarts), None
    grace = grace_of(grace_seconds, restarts)
    with Output(num_processes, logs) as output, passing_on_signals() as running:
        while True:
            with place_for(num_processes, lambda: bool(running.received)) as spawner:
                attempt = attempt_on(spawner, range(num_processes), running, output, grace)
            newest = max((step for step in (newest, attempt.saved) if step is not None), default=None)
            code = _report(attempt, running.received)
            more = None if running.received else remaining.after_end(code, newest)
            if more is None:
                return code
            remaining, num_processes = more, _number_left(attempt, min_processes)
            before_restart(_summary_of(attempt) if _failed(attempt) else f"exit code {code}")
            saved = "no checkpoint" if newest is None else f"the checkpoint of step {newest}"
            say(
                f"starting {num_processes} processes again, from {saved}; "
                f"restart {remaining.used} of {restarts}"
            )


def check(grace_seconds: float, num_processes: int, restarts: int, min_processes: int | None) -> None:
    """Check the numbers of a launch."""
    if not grace_seconds >= 0:
        raise UsageError(f"launch: --grace is {grace_seconds:g} seconds; it must be at least 0.")
    if num_processes < 1:
        raise UsageError(f"launch: -n is {num_processes} processes; it must be at least 1.")
    allow_files_of(num_processes)
    if restarts < 0:
        raise UsageError(f"launch: --restarts is {restarts}; it must be at least 0.")
    if min_processes is not None and not 1 <= min_processes <= num_processes:
        raise UsageError(
            f"launch: --min-processes is {min_processes}; it must be from 1 to {num_processes}, the number "
            "of processes (-n)."
        )
    if min_processes is not None and not restarts:
        raise UsageError("launch: --min-processes needs --restarts: without it, nothing starts again.")


def grace_of(grace_seconds: float, restarts: int) -> Grace:
    """Return the grace of a launch. If all start again, the others need no time after a failure."""
    return Grace(grace_seconds, min(grace_seconds, _CAUSE_SECONDS) if restarts else grace_seconds)


@contextlib.contextmanager
def passing_on_signals() -> Iterator[Running]:
    """Pass the first signal on to all processes that run, and kill them at the second."""
    running = Running()

    def pass_on(number: int, frame: FrameType | None) -> None:
        running.received.append(number)
        running.news.put(number)
        for process in running.processes:
            if len(running.received) == 1:
                process.send(number)
            else:
                process.kill()

    previous = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield running
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def attempt_on(
    spawner: Spawner,
    numbers: Sequence[int],
    running: Running,
    output: Output,
    grace: Grace,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Attempt:
    """Start processes, wait until all have ended or the grace period is over, and kill the rest."""
    processes = running.processes
    processes.clear()
    try:
        for number in numbers:
            # The running processes have got the signal, so the rest need not start.
            if running.received:
                break
            processes.append(spawner.start(number, running.news, output.add))
        ended = _wait(running.news, processes, grace, is_wanted)
    finally:
        for process in processes:
            process.kill()
        drained_by = time.monotonic() + _DRAIN_SECONDS
        for process in processes:
            process.drain(drained_by)
        output.flush()
    return Attempt(tuple(processes), ended, spawner.saved())


def _wait(
    news: News, processes: Sequence[Process], grace: Grace, is_wanted: Callable[[], bool]
) -> list[Process]:
    """Wait until all processes have ended or the grace period is over; return those that ended, in order.

    The grace period begins when a process fails, when SIGTERM arrives, and when one has ended and Ctrl-C has
    arrived. Ctrl-C alone does not begin it: a person can press it again.
    """
    ended: list[Process] = []
    give_up, stop = math.inf, 0
    while len(ended) < len(processes) and is_wanted():
        seconds = max(0, give_up - time.monotonic())
        try:
            item = news.get(timeout=min(seconds, _LONGEST_WAIT_SECONDS))
        except queue.Empty:
            if seconds == 0:
                break
            continue
        if isinstance(item, int):
            stop = stop or item
        elif item in processes:
            # A process that was killed in an earlier attempt is not in the list.
            ended.append(item)
            if has_failed(item) and not stop:
                give_up = min(give_up, time.monotonic() + grace.after_failure)
        if stop == signal.SIGTERM or (stop and ended):
            give_up = min(give_up, time.monotonic() + grace.after_signal)
    return ended


def _report(attempt: Attempt, received: Sequence[int]) -> int:
    """Print the failure, if there is one, and return the exit code for all."""
    if len(received) > 1:
        return 128 + received[-1]
    stop = stop_of(attempt.ended, received)
    if failed := _failed(attempt, received):
        # The processes that failed come first.
        ended = sorted(attempt.ended, key=lambda process: process not in failed)
        say(_summary_of(replace(attempt, ended=ended)))
        return code_of(ended, attempt.silent)
    killed = [x.number for x in attempt.silent if not any(SAVED in line for line in x.last_lines)]
    if received and killed:
        numbers, name = numbers_text(killed, len(attempt.processes)), signal.Signals(stop).name
        say(f"killed process {numbers}, still running --grace seconds after {name}. Raise --grace.")
        return 128 + stop
    is_done = attempt.processes and not any(process.exit_code for process in attempt.processes)
    return EXIT_DONE if is_done else EXIT_OF_STOPS[stop]


def _failed(attempt: Attempt, received: Sequence[int] = ()) -> list[Outcome]:
    return causes(attempt.ended, attempt.silent, stop_of(attempt.ended, received))


def _summary_of(attempt: Attempt) -> str:
    return summary(attempt.processes, attempt.ended, attempt.saved)


def _number_left(attempt: Attempt, min_processes: int | None) -> int:
    """Return the number of processes of the next attempt."""
    total = len(attempt.processes)
    num_left = total - len(_failed(attempt))
    # If all failed alike, it was not for one of their machines.
    return total if min_processes is None or num_left == 0 else max(min_processes, num_left)


def say(text: str) -> None:
    """Print a line of the launcher."""
    print_line(f"meshwright launch: {text}", sys.stderr)
