import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.observe._log import logger
from meshwright.observe._metrics import Mean
from meshwright.processes._when import Tick, at, every, never


class OnDevice:
    """A scalar that still sits on a device, and writes down who asks for it."""

    def __init__(self, value, journal):
        self._value, self._journal = value, journal

    def copy_to_host_async(self):
        self._journal.append("start")

    def __array__(self, dtype=None, copy=None):
        self._journal.append("take")
        return np.asarray(self._value, dtype)

    def _refuse(self, *_):
        raise AssertionError("the host waited for a metric")

    __float__ = __int__ = __bool__ = __format__ = item = block_until_ready = _refuse


@pytest.fixture
def reports():
    return []


@pytest.fixture
def write(reports):
    return lambda step, values: reports.append((step, values))


def run(
    log, steps, *, metrics=lambda step: {"loss": step}, scores=None, clock=None, seconds=lambda step: 1.0
):
    """Turn `log` as the loop does, up to `steps` and through the last tick."""
    for step in range(1, steps + 1):
        if clock:
            clock.advance(seconds(step))
        log(Tick(step), metrics(step), (scores or {}).get(step))
    log(Tick(steps, last=True), {}, None)


def test_a_report_is_the_mean_since_the_last_one(reports, write, clock):
    run(logger(write, every(2), clock=clock), steps=4)
    assert reports == [(2, {"loss": 1.5}), (4, {"loss": 3.5})]


def test_tokens_weigh_alike_however_they_fall_into_steps(reports, write, clock):
    batches = {1: jnp.array([1.0, 2.0, 3.0]), 2: jnp.array([10.0])}
    run(logger(write, every(2), clock=clock), steps=2, metrics=lambda step: {"loss": Mean.of(batches[step])})
    assert reports == [(2, {"loss": 4.0})]


def test_a_turn_that_does_not_report_asks_nothing_of_the_device(reports, write):
    journal = []
    log = logger(write, at(1000))
    for step in range(1, 1000):
        log(
            Tick(step),
            {"loss": OnDevice(1.0, journal), "acc": Mean(OnDevice(1, journal), OnDevice(1, journal))},
            None,
        )
    assert journal == reports == []


def test_a_report_fetches_all_steps_in_one_transfer(reports, write, clock):
    journal = []
    run(logger(write, every(3), clock=clock), steps=3, metrics=lambda step: {"loss": OnDevice(step, journal)})
    assert journal == ["start"] * 3 + ["take"] * 3
    assert reports == [(3, {"loss": 2.0})]


def test_scores_that_come_with_a_report_are_part_of_it(reports, write, clock):
    run(logger(write, every(2), clock=clock), steps=2, scores={2: {"held_out/accuracy": 0.5}})
    assert reports == [(2, {"loss": 1.5, "held_out/accuracy": 0.5})]


def test_scores_that_come_alone_are_written_at_once_and_alone(reports, write, clock):
    run(logger(write, every(2), clock=clock), steps=2, scores={1: {"held_out/accuracy": 0.5}})
    assert reports == [(1, {"held_out/accuracy": 0.5}), (2, {"loss": 1.5})]


def test_the_last_tick_reports_what_is_left(reports, write, clock):
    run(logger(write, every(2), clock=clock), steps=3)
    assert reports == [(2, {"loss": 1.5}), (3, {"loss": 3.0})]


def test_a_policy_that_is_never_due_reports_once_at_the_end(reports, write, clock):
    run(logger(write, never, clock=clock), steps=3)
    assert reports == [(3, {"loss": 2.0})]


def test_the_last_tick_does_not_repeat_a_report(reports, write, clock):
    run(logger(write, every(3), clock=clock), steps=3)
    assert [step for step, _ in reports] == [3]


def test_scores_of_the_last_tick_follow_the_report_of_its_step(reports, write, clock):
    log = logger(write, every(1), clock=clock)
    log(Tick(1), {"loss": 1.0}, None)
    log(Tick(1, last=True), {}, {"held_out/loss": 2.0})
    assert reports == [(1, {"loss": 1.0}), (1, {"held_out/loss": 2.0})]


def test_a_run_that_made_no_step_reports_nothing(reports, write):
    logger(write)(Tick(900, last=True), {}, None)
    assert reports == []


def test_rates_are_steps_over_the_seconds_since_the_last_report(reports, write, clock):
    log = logger(write, every(5), per_second={"examples": 32, "tokens": 4096}, clock=clock)
    run(log, steps=5, clock=clock, seconds=lambda step: 0.75 if step == 3 else 0.5 - 1 / 12)
    rates = {"steps_per_second": 2.0, "examples_per_second": 64.0, "tokens_per_second": 8192.0}
    assert reports == [(5, {"loss": 3.0} | {name: pytest.approx(rate) for name, rate in rates.items()})]


def test_seconds_in_which_the_loop_did_not_train_do_not_count(reports, write, clock):
    log = logger(write, every(5), paused=lambda: 60.0 if clock.now > 60 else 0.0, clock=clock)
    run(log, steps=5, clock=clock, seconds=lambda step: 60.5 if step == 3 else 0.5)
    assert reports[0][1]["steps_per_second"] == 2.0


def test_the_turn_after_a_report_counts_in_the_next_one(reports, write, clock):
    run(logger(write, every(1), clock=clock), steps=2, clock=clock, seconds=lambda step: 0.25)
    assert reports == [(1, {"loss": 1.0}), (2, {"loss": 2.0, "steps_per_second": 4.0})]


def test_rates_are_of_the_turns_since_the_last_report(reports, write, clock):
    run(
        logger(write, every(4), clock=clock),
        steps=6,
        clock=clock,
        seconds=lambda step: 0.5 if step <= 4 else 0.25,
    )
    assert [values["steps_per_second"] for _, values in reports] == [2.0, 4.0]


def test_the_last_tick_is_no_turn(reports, write, clock):
    log = logger(write, never, clock=clock)
    for step in (1, 2):
        clock.advance(0.5)
        log(Tick(step), {"loss": 1.0}, None)
    log(Tick(2, last=True), {}, None)
    assert reports == [(2, {"loss": 1.0, "steps_per_second": 2.0})]


def test_input_wait_is_the_share_of_the_time_since_the_last_report(reports, write, clock):
    log = logger(write, every(10), waited=lambda: 0.25 * clock.now if clock.now > 10 else 0.0, clock=clock)
    run(log, steps=20, clock=clock)
    assert [values["input_wait"] for _, values in reports] == [0.0, 0.5]


def test_input_wait_is_a_share_even_if_the_clocks_disagree(reports, write, clock):
    log = logger(write, every(2), waited=lambda: 3 * clock.now, clock=clock)
    run(log, steps=2, clock=clock)
    assert reports[0][1]["input_wait"] == 1.0
