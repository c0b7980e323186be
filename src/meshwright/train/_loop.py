"""The loop. All that a run does, in the order in which it happens."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import jax

from meshwright import process
from meshwright.tree import PyTree
from meshwright.unknown_arguments import explained
from meshwright.when import Scores, Tick

RUN_AHEAD = 4
"""Steps in flight. Enough to hide Python; unbounded, virtual CPU devices deadlock in collectives."""


class State(Protocol):
    """The value that a loop trains: a `TrainState`, or any pytree of arrays that counts its updates."""

    @property
    def step(self) -> Any: ...


S = TypeVar("S", bound=State)


def nothing(*_: Any) -> None:
    """A room left empty."""


@explained
def fit(
    step: Callable[[Any, PyTree], tuple[Any, PyTree]],
    state: S,
    data: Iterator[PyTree],
    *,
    max_steps: int,
    evaluate: Callable[[Tick, Any], Scores | None] = nothing,
    log: Callable[[Tick, PyTree, Scores | None], None] = nothing,
    save: Callable[[Tick, Any, Iterator[PyTree], Scores | None], None] = nothing,
    trace: Callable[[Tick], AbstractContextManager[Any]] = lambda _: nullcontext(),
    on_step: Callable[[Tick], None] = nothing,
    stop: Callable[[Tick], bool | None] = nothing,
) -> S:
    """Train until `max_steps` updates have been made, the data ends, or `stop` says so.

    Each argument after `max_steps` is a room, called every turn, that decides for itself
    whether it is due. Rooms never see each other and never change the state. After the
    last update `evaluate`, `log` and `save` are called once more, with `tick.last`.

    Args:
      step: one update, `(state, batch) -> (state, metrics)`, which may donate the state; see `make_step`.
      state: donated; use the returned one.
      data: an iterator of batches, of which one is taken for each step and none too many.
      max_steps: the updates of the whole run, those made before a restart included.
      evaluate: returns scores, or None when not due.
      log: is given every step's metrics (still on the device) and the scores.
      save: is given the data iterator too, so that a restart continues mid-epoch.
      trace: wraps the step; see `profile.tracer`.
      on_step: is told of each turn: progress, and hang detection (`watchdog`).
      stop: True ends the run early, after a last save. Must agree on all processes.

    Returns:
      The state after the last update.

    Example:
      >>> layout, optimizer = mw.Layout(mw.make_mesh("data=-1")), optax.sgd(0.5)
      >>> state = mw.train.init_state(lambda key: {"w": jnp.zeros(2)}, optimizer, 0, layout)
      >>> step = mw.make_step(lambda params, batch: (params["w"] - batch["y"]).mean() ** 2, optimizer, layout)
      >>> examples = {"y": np.ones((16, 2), np.float32)}
      >>> with mw.batches(examples, 8, layout.batch_sharding, seed=0) as data:
      ...     state = mw.fit(step, state, data, max_steps=3)
      >>> int(state.step)
      3
    """
    tick, wait = Tick(int(state.step)), at_most_ahead(RUN_AHEAD)
    begin_alike(state, data, max_steps)
    for i, batch in zip(range(tick.step + 1, max_steps + 1), _ending_together(state, data), strict=False):
        tick = Tick(i)
        with trace(tick):
            state, metrics = step(state, batch)
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
    return state


def begin_alike(state: Any, data: Any, steps: int) -> None:
    """Compare with the other processes from where to where they train, if the state is on devices of all.

    What `data` says of itself, if it has `facts()`, is compared, too. Collective.

    Raises:
      UsageError: they differ: one of them would wait for the others for ever, or train on other examples.
    """
    if _is_of_all(state):
        facts = getattr(data, "facts", dict)
        steps_said = {"steps": str(steps), "steps made before": str(int(state.step))}
        process.compare("the run", lambda: {**steps_said, **facts()})


def _ending_together(state: Any, data: Iterator[PyTree]) -> Iterator[PyTree]:
    """Return the batches of `data`; where they end, they must end on all processes that train together.

    Batches of ours, which have `facts()`, see to it themselves.
    """
    if hasattr(data, "facts") or not _is_of_all(state):
        return data
    return process.ending_together(data, lambda _: (0, 0))


def _is_of_all(state: Any) -> bool:
    return process.spans_all_processes(getattr(getattr(state.step, "sharding", None), "device_set", ()))


def at_most_ahead(num_steps: int) -> Callable[[PyTree], None]:
    """Return a function that, given each step's outputs, waits for the step `num_steps` before."""
    in_flight: deque[PyTree] = deque()

    def wait(outputs: PyTree) -> None:
        in_flight.append(outputs)
        if len(in_flight) > num_steps:
            jax.block_until_ready(in_flight.popleft())

    return wait
