import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.observe._log import StepTime
from meshwright.processes._when import Tick


def told(turns, ahead=4):
    """A `StepTime` that was told of turns at these times."""
    times = iter(turns)
    step_time = StepTime(ahead, clock=lambda: next(times))
    for i, _ in enumerate(turns):
        step_time(Tick(i + 1))
    return step_time


def at(intervals):
    return [sum(intervals[:i]) for i in range(len(intervals) + 1)]


def test_long_turns_of_evaluation_and_saving_do_not_count():
    assert told(at([2.0] * 9 + [500.0] + [2.0] * 9 + [90.0])).seconds() == 2


def test_turns_that_only_launch_do_not_count():
    """After a report: four launches at once, then the report's wait for what was launched."""
    assert told(at([0.0] * 4 + [1.0] * 41 + [5.0])).seconds() == 1


@given(st.integers(0, 4))
def test_of_few_turns_it_is_the_mean(num_finished):
    launches = 4
    steps = launches + num_finished + 1
    intervals = [0.0] * launches + [1.0] * num_finished + [launches + 1.0]
    assert told(at(intervals)).seconds() == pytest.approx(steps / len(intervals))


def test_each_answer_is_about_the_turns_since_the_last():
    times = iter([0, 1, 2, 5, 8])
    step_time = StepTime(ahead=4, clock=lambda: next(times))
    answers = []
    for asked in (False, False, True, False, True):
        step_time(Tick(1))
        if asked:
            answers.append(step_time.seconds())
    assert answers == [1, 3]


def test_one_turn_tells_nothing():
    assert told([3.0]).seconds() is None
