"""Training loops, timed against each other: in one process, in rounds in which all take turns."""

import gc
import multiprocessing
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

RUN_AHEAD = 4  # steps in flight, as in `mw.fit`, which the environments of some peers cannot import


class Moment(NamedTuple):
    """Seconds of the main thread's CPU time, of all threads' together, and of wall time."""

    main: float
    cpu: float
    wall: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.thread_time(), time.process_time(), time.perf_counter())


class Span(NamedTuple):
    """So many steps began here and were done there."""

    num_steps: int
    begin: Moment
    end: Moment


Run = Callable[[int], Span]
"""Makes about as many more steps as asked, and returns which of them were timed."""


def timed(run: Callable[[int], int]) -> Run:
    """Time all of `run`, which returns how many steps it made, all of them done."""

    def timed_run(num_steps: int) -> Span:
        begin = Moment.now()
        return Span(run(num_steps), begin, Moment.now())

    return timed_run


def bare_loop(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, batches: Iterator[Any]) -> Run:
    """The loop one writes oneself, which never runs further ahead than `fit` does."""

    def run(num_steps: int) -> int:
        nonlocal state
        in_flight = deque()
        for _ in range(num_steps):
            state, metrics = step(state, next(batches))
            in_flight.append(metrics)
            if len(in_flight) > RUN_AHEAD:
                jax.block_until_ready(in_flight.popleft())
        jax.block_until_ready(state)
        return num_steps

    return timed(run)


def shuffled(num_examples: int, batch_size: int, batch_of: Callable[[np.ndarray], Any]) -> Iterator[Any]:
    """Yield for ever what `batch_of` makes of the numbers of some examples, shuffled by numpy."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(num_examples)
        for start in range(0, num_examples - batch_size + 1, batch_size):
            yield batch_of(order[start : start + batch_size])


@dataclass(frozen=True)
class Cost:
    """Microseconds per step, one number for each round: as in `Moment`."""

    main: list[float]
    cpu: list[float]
    wall: list[float]

    def add(self, span: Span) -> None:
        for numbers, begin, end in zip(vars(self).values(), span.begin, span.end, strict=True):
            numbers.append(1e6 * (end - begin) / span.num_steps)


def measure(loops: dict[str, Run], *, steps: int, rounds: int) -> dict[str, Cost]:
    for run in loops.values():
        run(50)  # compiles what is left to compile
    gc.freeze()  # so that nobody's collector walks through another's examples
    costs = {name: Cost([], [], []) for name in loops}
    for turn in range(rounds):
        for name in list(loops) if turn % 2 else reversed(loops):
            costs[name].add(loops[name](steps))
    return costs


def ratio(these: list[float], those: list[float]) -> float:
    """The median of the rounds' ratios: what slows a whole round down cancels out."""
    return statistics.median(a / b for a, b in zip(these, those, strict=True))


def show(title: object, costs: dict[str, Cost], base_of: Callable[[str], str]) -> None:
    """Print a table of costs, each beside its ratio to that of the loop called `base_of(name)`."""
    columns = ("main thread", "all CPU", "wall")
    print(f"\n{title}, µs/step\n{'':26}" + "".join(f"{column:>14}  ratio" for column in columns))
    for name, cost in costs.items():
        pairs = zip(vars(cost).values(), vars(costs[base_of(name)]).values(), strict=True)
        cells = (f"{statistics.median(these):14.0f}{ratio(these, those):7.2f}" for these, those in pairs)
        print(f"{name:26}" + "".join(cells))


def say(met: bool, what: str) -> bool:
    """Print whether a bar is met, and return it."""
    print(f"  {'✓' if met else '✗'} {what}")
    return met


def on_devices(num_devices: int, measure_here: Callable[..., Any], *args: Any) -> Any:
    """Return what `measure_here` does in a process of its own: one has one number of devices for life."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_on_devices, num_devices, measure_here, *args).result()


def _on_devices(num_devices: int, measure_here: Callable[..., Any], *args: Any) -> Any:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices)
    return measure_here(*args)
