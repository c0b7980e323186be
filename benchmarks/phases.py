"""What a step pays for the clock of phases, the watchdog, the ledger and the board, in the main thread.

A step enters the phases of the wait for a batch, of the evaluation and of the save, as in `mw.run`. The
threads of the watchdog and the board run beside it. The time of a bare loop is subtracted.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from meshwright.train import PhaseClock, on_board, watchdog
from meshwright.when import Tick

MAX_MICROSECONDS = 5
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
    options = parser.parse_args()
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
    added = whole - bare
    print(f"{added:.2f} µs a step, at most {MAX_MICROSECONDS}")
    if added >= MAX_MICROSECONDS:
        raise SystemExit("missed")


if __name__ == "__main__":
    main()
