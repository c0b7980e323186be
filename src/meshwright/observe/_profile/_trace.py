"""`tracer`: profiles of a few steps, in the files that TensorBoard's profiler and XProf read.

<directory>/plugins/profile/step_100/<host>.xplane.pb          for the profilers
                                     <host>.trace.json.gz      for Perfetto (Chrome's JSON)
"""

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import jax

from meshwright.base._internal import location, put_at
from meshwright.errors import UsageError
from meshwright.processes._internal import Tick

Trace = Callable[[Tick], AbstractContextManager[Any]]
"""Function that wraps the launch of one step in a context."""

log = logging.getLogger("meshwright")


@contextmanager
def tracer(
    directory: str | Path,
    start_steps: Sequence[int],
    *,
    num_steps: int = 3,
    processes: Sequence[int] | Literal["all"] = (0,),
) -> Generator[Trace, None, None]:
    """Return a context that gives a `trace` function for `mw.fit`, which profiles some steps.

    A profile ends when all work that was launched in it is done, before the loop continues. Leaving the
    context ends an open profile, however the run ended. A start during an open profile is skipped; a start
    exactly `num_steps` after another is not. Problems with profiling are logged as warnings, and the run goes
    on.

    Args:
      directory: A directory, made if missing, or an address such as `s3://bucket/run`, to which each profile
        is copied when it ends. Each goes to `plugins/profile/step_N` in it, or to `step_N_process_P` in a run
        of several processes. TensorBoard is given `directory`.
      start_steps: First step of each profile; steps count from 1.
      num_steps: Number of steps of each profile.
      processes: Numbers of the processes that take profiles, or "all".

    Raises:
      UsageError: A number is out of range, or the address cannot be opened.

    Example:
      >>> with mw.observe.tracer("runs/digits", start_steps=(100,)) as trace:
      ...     pass  # mw.fit(..., trace=trace)
    """
    _check(start_steps, num_steps, processes)
    if processes != "all" and jax.process_index() not in processes:
        yield lambda _: nullcontext()
        return
    # An address that cannot be opened is an error now, and not when the first profile ends.
    location(directory)
    windows = _Windows(directory, frozenset(start_steps), num_steps)
    try:
        yield windows.step
        windows.finish()
    finally:
        # This does not wait: after an error, launched work may never end.
        windows.close()


class _Windows:
    """The profiles of one run, of which one is open at a time."""

    def __init__(self, directory: str | Path, starts: frozenset[int], num_steps: int):
        self._directory, self._starts, self._num_steps = directory, starts, num_steps
        self._first: int | None = None
        # The contexts of the open profile.
        self._contexts = ExitStack()

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
        """Wait for all launched work, and end the profile."""
        if self._first is not None:
            _wait_for_all_launched()
            self.close()

    def close(self) -> None:
        if self._first is None:
            return
        first, self._first = self._first, None
        try:
            with self._contexts:
                jax.profiler.stop_trace()
            log.info("profile of steps from %d on: tensorboard --logdir %s", first, self._directory)
        except Exception as error:
            # Errors of JAX, disks and stores have no common type.
            log.warning("the profile of steps from %d on is lost: %s", first, error)

    def _open(self, step: int) -> None:
        if self._first is not None:
            log.warning("no profile from step %d on: that from step %d is still open", step, self._first)
            return
        options = jax.profiler.ProfileOptions()
        options.session_id = _name(step)
        try:
            with ExitStack() as contexts:
                directory = contexts.enter_context(put_at(self._directory))
                # Made now: if JAX 0.10 cannot write a profile at its end, it can never trace again.
                (directory / "plugins/profile" / _name(step)).mkdir(parents=True, exist_ok=True)
                jax.profiler.start_trace(directory, profiler_options=options)
                self._first, self._contexts = step, contexts.pop_all()
        except (RuntimeError, OSError) as error:
            log.warning("no profile from step %d on: %s", step, error)


def _name(step: int) -> str:
    """Return the name of a profile's directory.

    It has the step, not the time: two profiles may end in one second, and hosts' clocks differ.
    """
    # Files are named by host, and one host may have several processes.
    many = jax.process_count() > 1
    return f"step_{step}_process_{jax.process_index()}" if many else f"step_{step}"


def _wait_for_all_launched() -> None:
    """Wait until the arrays of this process hold their values; the loop does not pass its outputs here."""
    for array in jax.live_arrays():
        # While a save is written, its view of a buffer on one device keeps an array alive whose other buffers
        # were donated. Such an array is not `is_deleted`, and waiting for it raises; its work is done.
        with suppress(RuntimeError):
            array.block_until_ready()


def _check(start_steps: Sequence[int], num_steps: int, processes: Sequence[int] | Literal["all"]) -> None:
    if num_steps < 1 or any(step < 1 for step in start_steps):
        raise UsageError(
            f"tracer: start_steps={tuple(start_steps)}, num_steps={num_steps}; steps count from 1, and a "
            "profile has at least one step."
        )
    if processes != "all" and not all(isinstance(number, int) and number >= 0 for number in processes):
        raise UsageError(f"tracer: processes={processes!r}; give process numbers, such as (0,), or 'all'.")
