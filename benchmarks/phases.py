"""What a step pays for the clock of phases, the watchdog, the ledger and the board, in the main thread.

A step enters the phases of the wait for a batch, of the evaluation and of the save, as in `mw.run`. The
threads of the watchdog and the board run beside it. The time of a bare loop is subtracted. It is told, in
microseconds and as a multiple of a step that enters three empty context managers made by `contextlib`; the
bar is this multiple.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshwright.processes._when import Tick
from meshwright.training._heartbeat import on_board
from meshwright.training._phase_clock import PhaseClock
from meshwright.training._watchdog import watchdog

MAX_RATIO = 1.5
SHORTEST_SECONDS = 60


def microseconds(act: Callable[[int], None], num_steps: int, rounds: int) -> float:
    """Return the least CPU time of the main thread for one call, in microseconds."""
    times = []
    for _ in range(rounds):
        started = time.thread_time()
        for step in range(num_steps):
            act(step)
        times.append(time.thread_time() - started)
    return 1e6 * min(times) / num_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes, to see that the script runs; judges no times"
    )
    options = parser.parse_args()
    if options.tiny:
        options.steps, options.rounds = 100, 1
    clock = PhaseClock()
    with tempfile.TemporaryDirectory() as directory, watchdog(3600, clock=clock) as watch:

        def step(number: int) -> None:
            before = watch.enter("input")
            watch.enter(before)
            watch(Tick(number))
            with watch.phase("evaluation"):
                pass
            with watch.phase("save"):
                pass

        with on_board(Path(directory, "board"), clock, SHORTEST_SECONDS):
            whole = microseconds(step, options.steps, options.rounds)
        bare = microseconds(lambda number: Tick(number) and None, options.steps, options.rounds)
    yardstick = microseconds(three_empty_phases, options.steps, options.rounds)
    added = whole - bare
    print(f"{added:.2f} µs a step, {added / yardstick:.2f} × three empty phases, at most {MAX_RATIO}")
    if not options.tiny and added > MAX_RATIO * yardstick:
        raise SystemExit("missed")


@contextlib.contextmanager
def empty():
    yield


def three_empty_phases(number: int) -> None:
    for _ in range(3):
        with empty():
            pass


if __name__ == "__main__":
    main()
