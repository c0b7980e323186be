from contextlib import contextmanager

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.training._loop import RUN_AHEAD, at_most_ahead, fit
from meshwright.training._state import TrainState


def state_at(step=0):
    return TrainState(jnp.int32(step), {}, (), jnp.uint32(0))


def fake_step(state, batch):
    return TrainState(state.step + 1, {}, (), state.seed), {}


def run(steps, data=None, start=0, **functions):
    return fit(
        fake_step, state_at(start), iter(range(1000)) if data is None else data, max_steps=steps, **functions
    )


def test_it_makes_as_many_updates_as_are_left():
    assert int(run(steps=7, start=3).step) == 7


def test_a_finished_run_makes_none():
    assert int(run(steps=3, start=3).step) == 3


def test_more_steps_than_a_state_can_count_are_refused():
    with pytest.raises(UsageError, match="max_steps is 2147483648"):
        run(steps=2**31)


def test_it_takes_no_batch_too_many():
    data = iter(range(10))
    run(steps=4, data=data)
    assert next(data) == 4


def test_it_ends_when_the_data_ends():
    assert int(run(steps=100, data=iter(range(5))).step) == 5


def test_every_function_is_told_when_it_is_over():
    seen = []
    run(steps=3, save=lambda tick, *_: seen.append((tick.step, tick.last)))
    assert seen == [(1, False), (2, False), (3, False), (3, True)]


def test_functions_are_called_in_the_order_of_the_page():
    seen = []

    @contextmanager
    def trace(tick):
        seen.append("trace")
        yield

    names = ("on_step", "evaluate", "log", "save", "stop")
    run(steps=1, trace=trace, **{name: lambda *_, name=name: seen.append(name) for name in names})
    assert seen == ["trace", *names, "evaluate", "log", "save"]


def test_scores_reach_log_and_save():
    scores, seen = {"loss": 1.0}, []
    run(
        steps=1,
        evaluate=lambda tick, state: scores,
        log=lambda *a: seen.append(a[2]),
        save=lambda *a: seen.append(a[3]),
    )
    assert seen == [scores] * 4


def test_stop_ends_the_run_after_the_step_and_a_last_save():
    seen = []
    state = run(
        steps=100, stop=lambda tick: tick.step == 5, save=lambda tick, *_: seen.append((tick.step, tick.last))
    )
    assert int(state.step) == 5
    assert seen[-1] == (5, True)


class Unread:
    """A metric that tells when it is waited for, and refuses to be read."""

    def __init__(self, waited):
        self._waited = waited

    def block_until_ready(self):
        self._waited.append(self)
        return self

    def __array__(self, *_, **__):
        raise AssertionError("fetched")

    __float__ = __int__ = __bool__ = __index__ = __array__


def test_nothing_is_fetched_on_a_step_that_does_not_report():
    def step(state, batch):
        return fake_step(state, batch)[0], {"loss": Unread([])}

    log = mw.observe.logger(lambda step, values: None, mw.engine.at(12))
    with pytest.raises(
        AssertionError, match="fetched"
    ):  # step 12 reports, which shows that the test can fail
        fit(step, state_at(), iter(range(1000)), max_steps=12, log=log)
    assert int(fit(step, state_at(), iter(range(1000)), max_steps=11, log=lambda *_: None).step) == 11
    seen = []
    fit(
        step,
        state_at(),
        iter(range(11)),
        max_steps=11,
        log=lambda tick, *rest: tick.last or log(tick, *rest),
        on_step=seen.append,
    )
    assert len(seen) == 11


def test_only_the_step_a_few_before_is_waited_for():
    waited, wait = [], at_most_ahead(2)
    outputs = [{"loss": Unread(waited)} for _ in range(5)]
    for output in outputs:
        wait(output)
    assert waited == [output["loss"] for output in outputs[:3]]


def test_the_host_runs_ahead_of_a_slow_step_and_not_further():
    """Counts, at each launch, the steps that the device has not finished: none of them was waited for."""
    multiplied = jax.jit(lambda x: jax.lax.fori_loop(0, 100, lambda _, y: jnp.tanh(y @ y), x))
    x = jax.block_until_ready(multiplied(jnp.ones((400, 400))))
    outputs, unfinished = [], []

    def step(state, batch):
        outputs.append(multiplied(outputs[-1] if outputs else x))
        unfinished.append(sum(not output.is_ready() for output in outputs))
        return fake_step(state, batch)[0], {"loss": outputs[-1]}

    fit(step, state_at(), iter(range(100)), max_steps=3 * RUN_AHEAD)
    assert max(unfinished) == RUN_AHEAD + 1


def counting(number):
    """Return an update that adds `number(step)` to the step."""
    return lambda state, batch: (TrainState(state.step + number(state.step), {}, (), state.seed), {})


@pytest.mark.parametrize("number", [0, 2])
def test_an_update_that_does_not_count_each_batch_once_is_refused(number):
    steps = []
    with pytest.raises(UsageError, match=r"after batch 1 .* step=[02]\..*\n  Return .* step=state.step \+ 1"):
        fit(
            counting(lambda step: number),
            state_at(),
            iter(range(9)),
            max_steps=4,
            on_step=lambda tick: steps.append(tick.step),
        )
    assert not steps


def test_an_update_that_later_skips_a_batch_without_counting_is_told_at_the_end(caplog):
    fit(counting(lambda step: (step == 0).astype(int)), state_at(), iter(range(9)), max_steps=4)
    assert "after batch 4 the state has step=1. An update must count each batch once" in caplog.text
