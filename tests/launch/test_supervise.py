"""Random histories of a supervised run, played by processes that only say how they ended."""

import contextlib
from dataclasses import dataclass, field

import pytest

from meshwright.errors import EXIT_AGAIN, EXIT_CTRL_C, EXIT_DONE, EXIT_PEERS
from meshwright.launch import _supervise
from meshwright.launch._outcome import FINAL_EXIT_CODES, Restarts
from meshwright.launch._supervise import supervise
from soak import cases, rng

HANGS = None
"""The end of a process that does not end by itself."""
ENDS = (EXIT_DONE, 1, 2, 3, 5, EXIT_PEERS, EXIT_AGAIN, -9, -15, HANGS)
ORDERLY = (EXIT_DONE, EXIT_AGAIN, EXIT_CTRL_C)


@dataclass(eq=False)
class Played:
    """A process that has ended as the history says, or hangs until it is killed."""

    number: int
    exit_code: int
    host: str = "here"
    last_lines: list = field(default_factory=list)
    is_killed: bool = False

    def send(self, number):
        raise AssertionError("no signal came")

    def kill(self):
        self.is_killed = True

    def drain(self, until):
        assert self.is_killed


class History:
    """What happens to each start: how its processes end, in which order, and what was saved."""

    def __init__(self, drawn, num_starts):
        self.drawn, self.num_starts, self.started = drawn, num_starts, []

    @contextlib.contextmanager
    def place_for(self, num_processes, is_stopped):
        for start in self.started:
            assert all(process.is_killed for process in start.processes), "two starts at once"
        ends, saved = [EXIT_DONE] * num_processes, None
        if len(self.started) < self.num_starts:  # the last one ends well
            ends, saved = self._drawn_ends(num_processes), self.drawn.choice([None, *range(10)])
        self.started.append(Start(self, ends, saved))
        yield self.started[-1]

    def _drawn_ends(self, num_processes):
        ends = [self.drawn.choice(ENDS) for _ in range(num_processes)]
        if all(end is HANGS or end in ORDERLY for end in ends):  # then nothing would end those that hang
            ends = [EXIT_AGAIN if end is HANGS else end for end in ends]
        return ends


class Start:
    """The place of one start."""

    def __init__(self, history, ends, saved):
        self.history, self.ends, self._saved = history, ends, saved
        self.processes = []

    def start(self, number, news, show):
        end = self.ends[number]
        self.processes.append(Played(number, 0 if end is HANGS else end))
        if len(self.processes) == len(self.ends):
            ended = [one for one in self.processes if self.ends[one.number] is not HANGS]
            for one in self.history.drawn.sample(ended, len(ended)):
                news.put(one)
        return self.processes[-1]

    def saved(self):
        return self._saved


def causes(ends):
    failed = [end for end in ends if end is not HANGS and end not in ORDERLY]
    own = [end for end in failed if end != EXIT_PEERS]
    if EXIT_AGAIN in ends:  # one was told to stop: who ends by the same signal, or without it, has not failed
        return [end for end in own if end != -15]
    return own or ([end for end in ends if end == EXIT_DONE] if failed else []) or failed


def code_of(ends):
    """Return the exit code if it does not depend on the order of the ends; else None."""
    codes = {EXIT_PEERS if end == EXIT_DONE else end for end in causes(ends)}
    if not codes:
        return EXIT_AGAIN if EXIT_AGAIN in ends else EXIT_DONE
    (code,) = codes if len(codes) == 1 else (HANGS,)
    return code if code is HANGS or code > 0 else 128 - code


def play(drawn):
    """Supervise a random history, and check it."""
    restarts, num_processes = drawn.randint(0, 3), drawn.randint(1, 4)
    smallest = drawn.choice([None, 1]) if restarts else None
    history = History(drawn, num_starts=drawn.randint(0, 6))
    numbers = {"grace_seconds": 0, "restarts": restarts, "min_processes": smallest}
    code = supervise(history.place_for, num_processes, logs=None, **numbers)
    check(history, code, restarts, smallest)


def play_many(drawn, number):
    for _ in range(number):
        play(drawn)


@pytest.mark.soak
def test_every_history_ends_with_no_more_starts_than_the_rules_allow(capfd):
    play_many(rng("supervised histories"), cases(few=200, many=100_000))
    capfd.readouterr()


def forget_the_limit(restarts, exit_code, saved):
    return None if exit_code in FINAL_EXIT_CODES else restarts


def repeat_what_is_final(restarts, exit_code, saved):
    return _AFTER(restarts, 1 if exit_code in (2, 3) else exit_code, saved)


def forget_progress(restarts, exit_code, saved):
    return _AFTER(restarts, exit_code, None)


_AFTER = Restarts.after_end
BROKEN = {
    "a limit that is forgotten": (Restarts, "after_end", forget_the_limit),
    "an exit code that is repeated": (Restarts, "after_end", repeat_what_is_final),
    "progress that is forgotten": (Restarts, "after_end", forget_progress),
    "processes that stay": (Played, "kill", lambda process: None),
    "a run that shrinks unasked": (_supervise, "_number_left", lambda attempt, fewest: 1),
    "a run that grows": (_supervise, "_number_left", lambda attempt, fewest: 1 + len(attempt.processes)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_rule_is_found(what, monkeypatch):
    monkeypatch.setattr(*BROKEN[what])
    with pytest.raises(AssertionError):
        play_many(rng(what), 300)


def check(history, code, restarts, min_processes):
    """Check each decision of a history against the rules."""
    best, used = -1, 0
    for start, following in zip(history.started, [*history.started[1:], None], strict=True):
        saved, decided = start.saved(), code_of(start.ends)
        best, used = (saved, 0) if saved is not None and saved > best else (best, used)
        if following is None:
            assert decided in (HANGS, code)
            assert code in FINAL_EXIT_CODES or used == restarts
            return
        assert decided is HANGS or decided not in FINAL_EXIT_CODES
        assert used < restarts
        used += 1
        number, next_number = len(start.ends), len(following.ends)
        fewest = number if min_processes is None else max(min_processes, number - len(causes(start.ends)))
        assert fewest <= next_number <= number
