import pytest

from meshwright.errors import UsageError
from meshwright.when import Due, Tick, any_of, asked_once, at, every, every_minutes, never


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
    with pytest.raises(UsageError, match=r"mw[.]when[.]never"):
        every(0)


def test_the_last_tick_is_due_unless_its_step_was_done_already():
    due = Due(every(2))
    assert [due(Tick(1)), due(Tick(2)), due(Tick(2, last=True))] == [False, True, False]
    assert [due(Tick(3)), due(Tick(3, last=True))] == [False, True]
