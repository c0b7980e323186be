import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.processes._when import (
    Due,
    Tick,
    any_of,
    asked_once,
    at,
    every,
    every_minutes,
    never,
    whenever_free,
)


def steps(when, upto=10):
    return [step for step in range(1, upto + 1) if when(step)]


def test_policies_say_when():
    assert steps(every(3)) == [3, 6, 9]
    assert steps(at(2, 7)) == [2, 7]
    assert steps(any_of(every(4), at(1))) == [1, 4, 8]
    assert steps(never) == []


@pytest.mark.parametrize("when", [every(3), at(2), any_of(every(2), at(3)), never])
def test_a_policy_gives_one_answer_for_one_step(when):
    assert steps(when) == steps(when)


def test_every_so_many_minutes_by_the_clock():
    now = [0.0]
    when = every_minutes(1, asked_every=2, clock=lambda: now[0])
    answers = []
    for step in range(1, 9):
        now[0] += 20
        answers.append(when(step))
    assert answers == [False, False, False, True, False, False, False, True]


def test_all_who_share_a_policy_hear_the_same_answer():
    answers = iter([True, False])
    when = asked_once(lambda step: next(answers))
    assert [when(1), when(1), when(2), when(2)] == [True, True, False, False]


def test_every_zero_steps_is_refused():
    with pytest.raises(UsageError, match=r"mw[.]engine[.]never"):
        every(0)


def test_the_last_tick_is_due_unless_its_step_was_done_already():
    due = Due(every(2))
    assert [due(Tick(1)), due(Tick(2)), due(Tick(2, last=True))] == [False, True, False]
    assert [due(Tick(3)), due(Tick(3, last=True))] == [False, True]


class Loop:
    """A loop by a clock of its own, in which steps, saves and other things take as long as told."""

    def __init__(self, share, save_seconds, asked_every=1, jitter=0.0):
        self.now, self.saved, self.num_steps, self.jitter = 0.0, [], 0, jitter
        self._save_seconds, self._random = save_seconds, random.Random(0)
        self._due = whenever_free(share=share, asked_every=asked_every, clock=lambda: self.now)

    def run(self, num_steps, others=lambda step: 0.0):
        for _ in range(num_steps):
            self.num_steps += 1
            self.now += self._random.uniform(1 - self.jitter, 1 + self.jitter)
            if self._due(self.num_steps):
                self.saved.append(self.num_steps)
                self.now += self._save_seconds
            self.now += others(self.num_steps)
        return self


def test_saves_that_cost_nothing_are_made_at_each_look():
    assert Loop(0.01, save_seconds=0, asked_every=10).run(100).saved == [50, 60, 70, 80, 90, 100]


@given(
    share=st.floats(0.005, 0.5),
    save_seconds=st.floats(0.5, 50),
    asked_every=st.integers(1, 10),
)
def test_saves_take_the_share_of_the_loop_that_they_may(share, save_seconds, asked_every):
    between = asked_every + save_seconds / share
    loop = Loop(share, save_seconds, asked_every, jitter=0.1).run(round(20 * between) + 100)
    first, last = loop.saved[0], loop.saved[-1]
    spent = save_seconds * (len(loop.saved) - 1)
    assert spent / (last - first + spent) <= 1.2 * share + 1e-9
    assert len(loop.saved) > 5  # and not much less


def test_one_evaluation_beside_a_save_does_not_end_the_saves():
    loop, unlucky = Loop(0.1, save_seconds=1).run(100), []

    def evaluation(step):
        if not unlucky and loop.saved[-1] == step:
            unlucky.append(step)
        return 300.0 if unlucky == [step] else 0.0  # would be taken for the cost of the save

    loop.run(100, others=evaluation)
    assert unlucky
    assert len([step for step in loop.saved if step > unlucky[0]]) > 7


def test_the_first_steps_which_compile_are_not_taken_for_usual():
    loop = Loop(0.1, save_seconds=1).run(20, others=lambda step: 100.0 if step == 1 else 0.0)
    assert loop.saved == [5, 14]


@pytest.mark.parametrize("wrong", [{"share": 0}, {"share": 1}, {"share": -1}, {"asked_every": 0}])
def test_a_share_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(UsageError, match="share"):
        whenever_free(**wrong)
