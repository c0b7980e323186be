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

from meshwright.launch._outcome import causes, end_text
from meshwright.launch._process import News, Outcome, Process, Spawner

# The time between two looks at whether the run asks.
_SECONDS = 0.5
# The time to wait for the last output of processes that were killed.
_GONE_SECONDS = 2


@contextlib.contextmanager
def compiling_ahead(
    progress: Path, place_for: Callable[[int], Spawner], num_processes: int, say: Callable[[str], None]
) -> Iterator[None]:
    """While the block runs, compile for that number of processes if the run asks for it."""
    over, news = threading.Event(), News()
    request_file = progress.with_name(f"{progress.name}.ahead")
    request_file.unlink(missing_ok=True)

    def compile_ahead() -> None:
        while not over.wait(_SECONDS):
            if request_file.exists():
                _compile(place_for(num_processes), num_processes, over, news, say)
                return

    # The children die with the thread that starts them: it stays until they have ended.
    thread = threading.Thread(target=compile_ahead, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        # This ends the wait for news.
        news.put(0)
        thread.join()


def _compile(
    spawner: Spawner, number: int, over: threading.Event, news: News, say: Callable[[str], None]
) -> None:
    started = time.monotonic()
    processes: list[Process] = []
    ended: list[Outcome] = []
    try:
        for index in range(number):
            processes.append(spawner.start(index, news, _ignore))
        while len(ended) < number and not over.is_set() and not causes(ended):
            with contextlib.suppress(queue.Empty):
                item = news.get(timeout=_SECONDS)
                ended += [] if isinstance(item, int) else [item]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.drain(time.monotonic() + _GONE_SECONDS)
    if over.is_set():
        return
    noun = "1 process" if number == 1 else f"{number} processes"
    if failed := causes(ended):
        lines = "".join(f"\n    {line}" for line in failed[0].last_lines)
        say(
            f"the step could not be compiled ahead for {noun}: process {failed[0].number} ended with "
            f"{end_text(failed[0].exit_code)}. The run goes on; a start with {noun} may fail.{lines}"
        )
    else:
        say(f"compiled the step ahead for {noun}, in {time.monotonic() - started:.1f} s")


def _ignore(number: int, line: str, out: TextIO) -> None:
    """Show nothing of the processes that compile."""


def at_lowest_priority(command: Sequence[str]) -> tuple[str, ...]:
    """Return a command that runs after all others, where the system has `nice`."""
    return (*(("nice", "-n", "19") if shutil.which("nice") else ()), *command)
