"""Compiling ahead for a start with one process fewer, while the run trains.

Processes of the same program start at the lowest priority. They connect, compile the step into the cache, and
end; see `processes/_progress.py`. The run asks for them when its own step is compiled and the cache is
on.
"""

import contextlib
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from meshwright.launch._process import News, Outcome, Place, Process
from meshwright.launch._summary import causes, end_text

_SECONDS = 0.5
"""The time between two looks at whether the run asks."""
_GONE_SECONDS = 2
"""The time to wait for the last output of processes that were killed."""


@contextlib.contextmanager
def compiling_ahead(
    progress: Path, place_for: Callable[[int], Place], num_processes: int, say: Callable[[str], None]
) -> Iterator[None]:
    """While the block runs, compile for that number of processes if the run asks for it."""
    over, news = threading.Event(), News()
    asked = progress.with_name(f"{progress.name}.ahead")
    asked.unlink(missing_ok=True)

    def compile_ahead() -> None:
        while not over.wait(_SECONDS):
            if asked.exists():
                _compile(place_for(num_processes), num_processes, over, news, say)
                return

    # The children die with the thread that starts them: it stays until they have ended.
    thread = threading.Thread(target=compile_ahead, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        news.put(0)  # ends the wait for news
        thread.join()


def _compile(
    place: Place, number: int, over: threading.Event, news: News, say: Callable[[str], None]
) -> None:
    started = time.monotonic()
    processes: list[Process] = []
    ended: list[Outcome] = []
    try:
        for index in range(number):
            processes.append(place.start(index, news, _ignore))
        while len(ended) < number and not over.is_set() and not causes(ended):
            with contextlib.suppress(queue.Empty):
                one = news.get(timeout=_SECONDS)
                ended += [] if isinstance(one, int) else [one]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.drain(time.monotonic() + _GONE_SECONDS)
    if over.is_set():
        return
    what = "1 process" if number == 1 else f"{number} processes"
    if failed := causes(ended):
        lines = "".join(f"\n    {line}" for line in failed[0].last_lines)
        say(
            f"the step could not be compiled ahead for {what}: process {failed[0].number} ended with "
            f"{end_text(failed[0].exit_code)}. The run goes on; a start with {what} may fail.{lines}"
        )
    else:
        say(f"compiled the step ahead for {what}, in {time.monotonic() - started:.1f} s")


def _ignore(number: int, line: str, out: TextIO) -> None:
    """Show nothing of the processes that compile."""


def at_lowest_priority(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs after all others, where the system has `nice`."""
    return (*(("nice", "-n", "19") if shutil.which("nice") else ()), *command)
