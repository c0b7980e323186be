"""The loop's `trace`: profiles of a few steps, in the files that TensorBoard's profiler and XProf read.

<directory>/plugins/profile/step_100/<host>.xplane.pb          what the profilers open
<host>.trace.json.gz      the same for Perfetto (Chrome's JSON)
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import jax

from meshwright.errors import UsageError
from meshwright.storage import location, put_at
from meshwright.when import Tick

Trace = Callable[[Tick], AbstractContextManager[Any]]
"""Wraps the launch of one step."""

log = logging.getLogger("meshwright")


@contextmanager
def tracer(
    directory: str | Path,
    start_steps: Sequence[int],
    *,
    num_steps: int = 3,
    processes: Sequence[int] | Literal["all"] = (0,),
) -> Generator[Trace, None, None]:
    """Open a `trace` that profiles `num_steps` steps from each of `start_steps` on.

        with mw.profile.tracer("runs/digits", start_steps=(100,)) as trace:
            mw.fit(..., trace=trace)

    A profile ends when all that was launched in it is done, and before anything else of the loop's turn.
    Leaving the context ends one that is still open, whatever ended the run. A start inside an open window is
    skipped; one exactly `num_steps` after another is not. What goes wrong with profiling is logged as a
    warning and the run goes on.

    Args:
      directory: made if missing; or an address, `s3://bucket/run`, where a window is put
        when it ends. Each window goes to `plugins/profile/step_N` in it, on a run of several processes to
        `step_N_process_P`. TensorBoard is given `directory`.
      start_steps: the first update of each window, counted from 1 as ticks are.
      processes: those that profile.

    Raises:
      UsageError: a number that cannot be; or an address that cannot be opened.
    """
    _check(start_steps, num_steps, processes)
    if processes != "all" and jax.process_index() not in processes:
        yield lambda _: nullcontext()
        return
    # To be told now that it cannot be.
    location(directory)
    windows = _Windows(directory, frozenset(start_steps), num_steps)
    try:
        yield windows.step
        windows.finish()
    finally:
        windows.close()  # after an error nothing is waited for: it may never come


class _Windows:
    """The windows of one run, of which one is open at a time."""

    def __init__(self, directory: str | Path, starts: frozenset[int], num_steps: int):
        self._directory, self._starts, self._num_steps = directory, starts, num_steps
        self._first: int | None = None
        self._place = ExitStack()  # what is open while a window is

    def step(self, tick: Tick) -> AbstractContextManager[Any]:
        if tick.step in self._starts:
            self._open(tick.step)
        return nullcontext() if self._first is None else self._profiled(tick, self._first)

    @contextmanager
    def _profiled(self, tick: Tick, first: int) -> Iterator[None]:
        with jax.profiler.StepTraceAnnotation("train", step_num=tick.step):
            yield
        if tick.step >= first + self._num_steps - 1:
            self.finish()

    def finish(self) -> None:
        """Wait for what was launched, and close."""
        if self._first is not None:
            _wait_for_all_launched()
            self.close()

    def close(self) -> None:
        if self._first is None:
            return
        first, self._first = self._first, None
        try:
            with self._place:
                jax.profiler.stop_trace()
            log.info("profile of steps from %d on: tensorboard --logdir %s", first, self._directory)
        except Exception as error:  # the errors of JAX, disks and stores have nothing in common
            log.warning("the profile of steps from %d on is lost: %s", first, error)

    def _open(self, step: int) -> None:
        if self._first is not None:
            log.warning("no profile from step %d on: that from step %d is still open", step, self._first)
            return
        options = jax.profiler.ProfileOptions()
        options.session_id = _name(step)
        try:
            with ExitStack() as place:
                directory = place.enter_context(put_at(self._directory))
                # Now and not at the end: after a profile that it cannot write, JAX 0.10 cannot trace again.
                (directory / "plugins/profile" / _name(step)).mkdir(parents=True, exist_ok=True)
                jax.profiler.start_trace(directory, profiler_options=options)
                self._first, self._place = step, place.pop_all()
        except (RuntimeError, OSError) as error:
            log.warning("no profile from step %d on: %s", step, error)


def _name(step: int) -> str:
    """By step, not by time: two windows may end in one second, and hosts' clocks differ."""
    many = jax.process_count() > 1  # of one host too, and the files are named for the host alone
    return f"step_{step}_process_{jax.process_index()}" if many else f"step_{step}"


def _wait_for_all_launched() -> None:
    """Wait until the arrays of this process hold their values; the loop keeps a step's outputs to itself."""
    jax.block_until_ready([x for x in jax.live_arrays() if not x.is_deleted()])


def _check(start_steps: Sequence[int], num_steps: int, processes: Sequence[int] | Literal["all"]) -> None:
    if num_steps < 1 or any(step < 1 for step in start_steps):
        raise UsageError(
            f"tracer: start_steps={tuple(start_steps)}, num_steps={num_steps}; steps count from 1, and a "
            "profile has at least one."
        )
    if processes != "all" and not all(isinstance(number, int) and number >= 0 for number in processes):
        raise UsageError(f"tracer: processes={processes!r}; give their numbers, such as (0,), or 'all'.")
