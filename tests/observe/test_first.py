"""People see a loss by the fifth step, long before the first report; and evaluations stay on their screen."""

import jax
import jax.numpy as jnp
import pytest

import meshwright as mw
from meshwright.observe._log import logger
from meshwright.observe._writers import tee
from meshwright.processes._when import Tick, at, every


class Screen:
    """A writer that is for people."""

    def __init__(self):
        self.reported, self.firsts, self.evaluations = [], [], []

    def __call__(self, step, values, /):
        self.reported.append((step, values))

    def first(self, step, values, /):
        self.firsts.append((step, values))

    def evaluated(self, step, scores, /):
        self.evaluations.append((step, scores))


def turn(log, first, last, scores=None):
    for step in range(first, last + 1):
        log(Tick(step), {"loss": jnp.float32(step)}, (scores or {}).get(step))


def test_the_first_step_is_shown_alone_at_the_fifth():
    screen = Screen()
    log = logger(screen, at(1000))
    turn(log, 1, 4)
    assert screen.firsts == []
    turn(log, 5, 999)
    assert screen.firsts == [(1, {"loss": 1.0})]
    assert screen.reported == []


def test_it_is_the_first_step_after_a_restart():
    screen = Screen()
    turn(logger(screen, at(1000)), 701, 705)
    assert screen.firsts == [(701, {"loss": 701.0})]


@pytest.mark.parametrize("interval", [1, 3, 5])
def test_a_report_that_comes_first_is_enough(interval):
    screen = Screen()
    turn(logger(screen, every(interval)), 1, 30)
    assert screen.firsts == []


def test_what_is_reported_is_the_same_as_without_a_screen():
    screen, plain = Screen(), []
    turn(logger(screen, every(10)), 1, 10)
    turn(logger(lambda step, values: plain.append((step, values)), every(10)), 1, 10)
    assert screen.reported[0][1]["loss"] == plain[0][1]["loss"] == 5.5


def test_screens_are_found_where_writers_are_joined():
    screen = Screen()
    turn(logger(tee(lambda step, values: None, tee(screen)), at(1000)), 1, 5)
    assert len(screen.firsts) == 1


def test_scores_are_told_to_screens_when_they_were_reported():
    screen = Screen()
    turn(logger(screen, every(10)), 1, 10, {7: {"test/loss": 0.5}, 10: {"test/loss": 0.25}})
    assert screen.evaluations == [(7, {"test/loss": 0.5}), (10, {"test/loss": 0.25})]


@pytest.mark.slow
def test_the_loop_waits_for_nothing_to_show_it():
    """While the first step is at work, turns go by; it is shown in the first turn after it ended."""
    screen = Screen()
    log = logger(screen, at(1000))
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, x: x @ x / 800, x).mean())
    jnp.ones(1).block_until_ready()
    compiled = slow.lower(jnp.ones((800, 800))).compile()
    loss = compiled(jnp.ones((800, 800)))
    log(Tick(1), {"loss": loss}, None)
    turn(log, 2, 6)
    was_at_work = not loss.is_ready()
    assert was_at_work
    assert screen.firsts == []
    loss.block_until_ready()
    turn(log, 7, 7)
    assert [step for step, _ in screen.firsts] == [1]


def test_fit_shows_a_line_by_its_fifth_step(capsys):
    def step(state, batch):
        return state.replace(state.step + 1), {"loss": state.step * 2.0}

    class State:
        def __init__(self, step):
            self.step = step

        def replace(self, step):
            return State(step)

    seen = []

    def stop(tick):
        seen.append(capsys.readouterr().err)
        return tick.step == 6

    log = mw.observe.logger(mw.observe.Console(1000), mw.engine.every(1000))
    mw.fit(step, State(jnp.int32(0)), iter(range(1000)), max_steps=1000, log=log, stop=stop)
    assert seen[:4] == ["", "", "", ""]
    assert "step=1/1000 loss=0" in seen[4]
