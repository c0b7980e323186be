"""Calls that go deep have room in one chunk of memory."""

import resource
import sys

import pytest

from meshwright.deep_calls import with_room

TURNS = 1000


def leaf(a, b, c, d):
    return a + b + c + d


def pages_of_calls_at(depth):
    """Return how many pages of memory Linux gives while calls are made in a loop at some depth."""
    if depth:
        return pages_of_calls_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(TURNS):
        leaf(1, 2, 3, 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def most_pages():
    return max(map(pages_of_calls_at, range(300)))


@pytest.mark.skipif(sys.platform != "linux", reason="ru_minflt counts otherwise")
def test_no_loop_asks_the_system_for_memory_at_each_call():
    assert most_pages() >= TURNS, "CPython does not do so any more: remove meshwright.deep_calls"
    assert with_room(most_pages)() < TURNS


def test_the_function_keeps_its_arguments_errors_and_name():
    @with_room
    def divided(a, *, by):
        return a / by

    assert divided(6, by=3) == 2
    assert divided.__name__ == "divided"
    with pytest.raises(ZeroDivisionError):
        divided(1, by=0)
