"""The training loop: everything that a run does, in order."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import jax

from meshwright.base._internal import PyTree, explained
from meshwright.errors import UsageError
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Scores, Tick
from meshwright.training._state import check_num_steps

RUN_AHEAD = 4
"""The number of steps in flight. It hides Python's time; without a bound, virtual CPU devices deadlock."""

log = logging.getLogger("meshwright")


class State(Protocol):
    """The state that a loop trains: a `TrainState`, or any pytree of arrays with a `step`."""

    @property
    def step(self) -> Any: ...


S = TypeVar("S", bound=State)


def nothing(*_: Any) -> None:
    """Do nothing: the default of a function that the caller may give."""


@explained
def fit(
    step: Callable[[Any, PyTree], tuple[Any, PyTree]],
    state: S,
    data: Iterator[PyTree],
    *,
    max_steps: int,
    evaluate: Callable[[Tick, Any], Scores | None] = nothing,
    log: Callable[[Tick, PyTree, Scores | None], None] = nothing,
    save: Callable[[Tick, Any, Iterator[PyTree], Scores | None], Any] = nothing,
    trace: Callable[[Tick], AbstractContextManager[Any]] = lambda _: nullcontext(),
    on_step: Callable[[Tick], None] = nothing,
    stop: Callable[[Tick], bool | None] = nothing,
) -> S:
    """Train until `max_steps` updates have been made, the data ends, or `stop` says so.

    The functions after `max_steps` are called at every step, and each decides itself whether it is due. They
    do not change the state. After the last update `evaluate`, `log` and `save` are called once more, with
    `tick.last`.

    Args:
      step: A function that makes one update, `(state, batch) -> (state, metrics)`. It adds 1 to
        `state.step`, and may donate the state; see `make_step`.
      state: The state to start from. It is donated, so use the returned one.
      data: An iterator over batches. One batch is taken for each step, and no more.
      max_steps: The number of updates of the whole run, including those before a restart.
      evaluate: A function that returns scores, or None when no evaluation is due.
      log: A function that gets the metrics of each step, which are still on the devices, and the scores.
      save: A function that saves checkpoints. It also gets `data`, so that a restart continues mid-epoch.
      trace: A function that returns a context manager for the step; see `profile.tracer`.
      on_step: A function that is called after each step, such as a progress bar or a `watchdog`.
      stop: A function that returns True to end the run early, after a last save. All processes must return
        the same.

    Returns:
      The state after the last update.

    Raises:
      UsageError: The first update, or all of them, did not add 1 to `state.step` for each batch.

    Example:
      >>> layout, optimizer = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.5)
      >>> state = mw.training.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer, 0, layout)
      >>> step = mw.make_step(lambda params, batch: (params["w"] - batch["y"]).mean() ** 2, optimizer, layout)
      >>> examples = {"y": np.ones((16, 2), np.float32)}
      >>> with mw.batches(examples, 8, layout.batch_sharding, seed=0) as data:
      ...     state = mw.fit(step, state, data, max_steps=3)
      >>> int(state.step)
      3
    """
    tick, wait, check_count = Tick(int(state.step)), at_most_ahead(), count_check()
    check_equal_start(state, data, max_steps)
    for i, batch in zip(range(tick.step + 1, max_steps + 1), with_equal_end(state, data), strict=False):
        tick = Tick(i)
        with trace(tick):
            state, metrics = step(state, batch)
        check_count(tick, state)
        wait(metrics)
        on_step(tick)
        scores = evaluate(tick, state)
        log(tick, metrics, scores)
        save(tick, state, data, scores)
        if stop(tick):
            break

    tick = Tick(tick.step, last=True)
    scores = evaluate(tick, state)
    log(tick, {}, scores)
    save(tick, state, data, scores)
    check_count(tick, state)
    return state


def count_check() -> Callable[[Tick, Any], None]:
    """Return a function that checks, after the first and the last step, that the state counts the batches.

    A restart reads from the state how many batches it has been trained on. Another count after the first step
    is a UsageError, and after the last step a warning.

    Example:
      >>> from types import SimpleNamespace
      >>> check_count = mw.training.count_check()
      >>> state = SimpleNamespace(step=jnp.array(3))  # after one update of a state with step=2
      >>> check_count(mw.engine.Tick(3), state)
    """
    is_first = True

    def check(tick: Tick, state: Any) -> None:
        nonlocal is_first
        if (is_first or tick.last) and (counted := int(state.step)) != tick.step:
            text = (
                f"after batch {tick.step} the state has step={counted}. An update must count each batch "
                "once, however many updates it makes or skips, because a restart continues by this count.\n"
                "  Return the new state with step=state.step + 1, of the state that the update received."
            )
            if is_first:
                raise UsageError(text)
            log.warning(text)  # all is trained and saved
        is_first = False

    return check


def check_equal_start(state: Any, data: Any, max_steps: int) -> None:
    """Check that all processes start and end at the same steps, with the same data. Collective.

    Nothing is compared unless the state is on devices of all processes. The facts of `data` are compared if
    it has a method `facts`.

    Args:
      state: The state before the first step.
      data: The iterator over batches.
      max_steps: The number of updates of the whole run.

    Raises:
      UsageError: `max_steps` is not a whole number of 0 or more, or the processes differ.

    Example:
      >>> from types import SimpleNamespace
      >>> mw.training.check_equal_start(SimpleNamespace(step=jnp.array(0)), iter([]), 100)
    """
    check_num_steps("max_steps", max_steps)
    if _is_of_all(state):
        facts = getattr(data, "facts", dict)
        bounds = {"steps": str(max_steps), "steps made before": str(int(state.step))}
        processes.compare("the run", lambda: {**bounds, **facts()})


def with_equal_end(state: Any, data: Iterator[PyTree]) -> Iterator[PyTree]:
    """Return an iterator over `data` that raises an error if the batches end earlier on one process.

    For Meshwright's own batches, which check this, and for a state on one process, it is `data` itself.

    Example:
      >>> from types import SimpleNamespace
      >>> [*mw.training.with_equal_end(SimpleNamespace(step=jnp.array(0)), iter([{"y": 1}]))]
      [{'y': 1}]
    """
    if hasattr(data, "facts") or not _is_of_all(state):
        return data
    return processes.ending_together(data, lambda _: (0, 0))


def _is_of_all(state: Any) -> bool:
    return processes.spans_all_processes(getattr(getattr(state.step, "sharding", None), "device_set", ()))


def at_most_ahead(num_steps: int = RUN_AHEAD) -> Callable[[PyTree], None]:
    """Return a function that takes each step's outputs and waits for the step `num_steps` before it.

    Example:
      >>> wait = mw.training.at_most_ahead(2)
      >>> for step in range(5):
      ...     outputs = jnp.ones(8) * step
      ...     wait(outputs)  # returns when the outputs of step - 2 are there
    """
    in_flight: deque[PyTree] = deque()

    def wait(outputs: PyTree) -> None:
        in_flight.append(outputs)
        if len(in_flight) > num_steps:
            jax.block_until_ready(in_flight.popleft())

    return wait
