"""Random histories of runs that save in the memory of hosts, which die, come back and change."""

import json
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from meshwright.base._files import write_whole
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import commit
from meshwright.checkpoints._host_memory import _checkpoints as _tier
from meshwright.checkpoints._host_memory import _host_directory as _place
from meshwright.errors import MeshwrightError
from simulated.memory import play
from soak import cases, play_many


@pytest.mark.slow
@pytest.mark.soak
def test_a_run_continues_from_the_newest_step_that_all_its_hosts_have():
    play_many(play, "memory", cases(few=30, many=100_000))


def ask_the_first_only(held):
    return _COMPLETED(held[:1])


def leave_what_is_there(place, run, after=None):
    write_whole(place.path / ".run", json.dumps(run).encode())


def draw_no_attempt(of):
    return _DRAWN(of) | {"attempt": "00000000"}


def remove_all(steps, complete, nbytes, budget_nbytes):
    return list(steps)


def commit_alone(temporary, final, head, arrays, num_processes, abandoned, processes):
    commit(temporary, final, head, arrays, num_processes, abandoned, processes[:1])


WITHOUT_LOCK = SimpleNamespace(**{**vars(_directory), "lock_local": lambda path: ExitStack()})
_COMPLETED, _DRAWN = _place.completed, _place._drawn
BROKEN = {
    "a roll call of one process": (_place, "completed", ask_the_first_only),
    "memory of another number that stays": (_place, "_empty", leave_what_is_there),
    "room that is made of the newest complete step": (_tier, "steps_to_remove", remove_all),
    "no room that is made": (_tier, "steps_to_remove", lambda *_: []),
    "a save that counts before all hosts have it": (_tier.Writing, "state", lambda writing: ""),
    "a commit that does not wait for all of its host": (_tier, "commit", commit_alone),
    "memory without a lock": (_place, "_directory", WITHOUT_LOCK),
    "starts without a number of their own": (_place, "_drawn", draw_no_attempt),
    "remains that stay": (_directory, "remove_temporaries", lambda *_: None),
    "a run that is done and keeps memory": (
        _tier.HostMemoryCheckpoints,
        "_remove_if_saved",
        lambda tier, place: None,
    ),
    "a run that leaves memory for an older disk": (
        _tier.HostMemoryCheckpoints,
        "_remove_if_saved",
        lambda _, place: _tier.remove(place),
    ),
}


FIRST_FOUND = {
    "room that is made of the newest complete step": (77, 16),
    "a commit that does not wait for all of its host": (32, 37),
    "memory without a lock": (61, 396),
    "remains that stay": (7, 46),
    "a run that leaves memory for an older disk": (174, 55),
}
"""The first histories that find a rule broken on Python 3.11 and on 3.13, if that takes seconds."""


def rule(what):
    """Return the case of a rule; one takes a minute or more to be found broken."""
    return pytest.param(
        what, marks=[pytest.mark.long] if what == "memory of another number that stays" else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", [rule(what) for what in BROKEN])
@pytest.mark.daily(5)
def test_a_broken_rule_is_found(what, monkeypatch):
    monkeypatch.setattr(*BROKEN[what])
    with pytest.raises((AssertionError, OSError, MeshwrightError)):
        play_many(play, what, 4000, FIRST_FOUND.get(what, ()))
