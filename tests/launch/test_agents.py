"""Random histories of launchers on several machines: messages lost, late and twice, and sudden deaths."""

from dataclasses import replace
from functools import partial

import pytest

from agents import play
from meshwright.launch import _lead, _members
from meshwright.launch._lead import AgentView, Leader, Requirements
from meshwright.launch._members import Status
from meshwright.launch._outcome import FINAL_EXIT_CODES, Restarts
from soak import cases, play_many


def play_agents(name, number, first=()):
    play_many(partial(play, share_late=0.1 if name == "agents" else 0.5), name, number, first)


@pytest.mark.soak
def test_every_history_ends_and_no_two_generations_run_at_the_same_time():
    play_agents("agents", cases(few=200, many=100_000))


def obey_late_orders(agent, order, now):
    return _HEARD(agent, replace(order, answers=now), now)


def run_again(agent, order, now):
    if not agent.status.is_running:
        agent = replace(agent, status=replace(agent.status, leader=""))
    return _HEARD(agent, replace(order, generation=order.generation + 1), now)


def say_too_early(agent, order, now):
    agent = _HEARD(agent, order, now)
    return agent if agent.order else replace(agent, status=replace(agent.status, is_running=False))


def forget_the_limit(restarts, exit_code, saved):
    return None if exit_code in FINAL_EXIT_CODES else restarts


_HEARD, _START = _members.on_order, _lead._start
BROKEN = {
    "an agent that keeps its processes without orders": (_members, "on_time", lambda agent, now: agent),
    "an agent that obeys late orders": (_members, "on_order", obey_late_orders),
    "an agent that runs a generation twice": (_members, "on_order", run_again),
    "a leader that takes silence for death": (
        _lead,
        "_is_lost",
        lambda leader, name, now: now - leader.views[name].heard_at > 2,
    ),
    "an agent that says too early that its processes are dead": (_members, "on_order", say_too_early),
    "a leader that forgets its predecessor": (_lead, "_is_of_another", lambda leader, status: False),
    "a leader that goes on with too few": (
        _lead,
        "_start",
        lambda leader, now, here: _START(leader, now, [leader.own]),
    ),
    "a leader that waits for those that hang": (_lead, "_has_failed", lambda leader, name: False),
    "a leader that leaves before the others know": (_lead, "is_done", lambda leader, now: True),
    "a limit that is forgotten": (Restarts, "after_end", forget_the_limit),
}


FIRST_FOUND = {
    "an agent that obeys late orders": (686,),
    "an agent that says too early that its processes are dead": (586,),
    "a leader that takes silence for death": (429,),
}
"""The first histories that find a rule broken, where it takes seconds to get there."""


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.daily(5)
def test_a_broken_rule_is_found(what, monkeypatch):
    monkeypatch.setattr(*BROKEN[what])
    with pytest.raises(AssertionError):
        play_agents(what, 4000, FIRST_FOUND.get(what, ()))


def status(agent, **more):
    return Status(agent, agent, more.pop("job", "job"), sent=1.0, num_processes=1, address="a:1", **more)


def leader_of(*statuses, members, gone=()):
    seen = {one.agent: AgentView(one, heard_at=0.0, is_gone=one.agent in gone) for one in statuses}
    wanted = Requirements(hosts=3, min_hosts=2, wait_seconds=60)
    return Leader("the leader", "a", "job", wanted, Restarts(3), 0, 0, members=members, views=seen)


def test_a_machine_that_left_and_was_replaced_does_not_count_when_another_one_leaves():
    left, leaving = status("b", signal=15), status("d", signal=15)
    leader = leader_of(status("a"), left, status("c"), leaving, members=("a", "c", "d"), gone=("b",))
    assert not _lead._is_to_stop(leader)
    assert _lead._is_to_stop(leader_of(status("a"), left, leaving, members=("a", "b", "d")))


def test_ctrl_c_at_another_program_that_reports_here_stops_nothing():
    leader = leader_of(status("a"), members=("a",))
    assert _lead.on_status(leader, status("x", job="another", signal=2), current_time=1.0) == leader
    assert _lead.order_for(leader, status("x", job="another", signal=2)).exit_code == 2
