import random

import pytest

from meshwright.training._phase_clock import PHASES, PhaseClock
from soak import cases, rng


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Clock()


@pytest.mark.soak
def test_the_seconds_of_all_phases_are_the_time_since_the_start(time):
    draw = rng("phases")
    for _ in range(cases(few=20, many=2000)):
        clock = PhaseClock(started=time.now - draw.random(), clock=time)
        for step in range(draw.randrange(30)):
            time.now += draw.expovariate(1) ** 3
            act(draw, clock, step)
            time.now += draw.random()
            assert sum(clock.seconds().values()) == pytest.approx(time.now - clock.started)
            assert min(clock.seconds().values()) >= -1e-9


def act(draw: random.Random, clock, step):
    if draw.random() < 0.5:
        clock.finish_step(step)
    else:
        clock.enter(draw.choice(PHASES))


def stepped(time, seconds):
    clock = PhaseClock(clock=time)
    clock.finish_step(1)
    for step, each in enumerate(seconds, start=2):
        time.now += each
        clock.finish_step(step)
    return clock


def test_what_a_step_takes_beyond_the_usual_is_a_stall(time):
    clock = stepped(time, [0.5] * 25 + [60.0] + [0.5] * 10)
    found = clock.seconds()
    assert found["stall"] == pytest.approx(60.0, abs=1)
    assert found["step"] == pytest.approx(18, abs=1)


def test_a_stall_counts_while_it_lasts(time):
    clock = stepped(time, [0.5] * 25)
    time.now += 100
    assert clock.seconds()["stall"] == pytest.approx(100, abs=1)


def test_steps_that_the_host_launches_ahead_are_no_stall(time):
    clock = stepped(time, [0.0, 0.0, 0.0, 0.0, 2.5] * 20)
    assert "stall" not in clock.seconds()


def test_what_happens_for_the_first_time_has_a_limit_of_its_own(time):
    clock = PhaseClock(clock=time)
    assert clock.limit_seconds(30, first=1800) == 1800
    clock = stepped(time, [0.1] * 25)
    assert clock.limit_seconds(30, first=1800) == 30
    clock.enter("evaluation")
    assert clock.limit_seconds(30, first=1800) == 1800
    time.now += 10
    clock.record_usual()
    assert clock.limit_seconds(30, first=1800) == pytest.approx(50)


def test_a_longer_time_is_learned_if_it_is_told(time):
    clock = stepped(time, [0.1] * 25)
    clock.enter("save")
    clock.record_usual(100)
    assert clock.limit_seconds(30, first=1800) == 500
