import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.data._mixture import Turns, shares_of

SHARDING = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding
SHARE = st.one_of(st.just(0), st.floats(0.001, 1), st.integers(1, 100))


@st.composite
def shares_over_time(draw):
    """Return the names of sets, and their shares by the number of turns from which on they hold."""
    names = "abcdef"[: draw(st.integers(1, 6))]
    shares = st.lists(SHARE, min_size=len(names), max_size=len(names)).filter(any)
    starts = [0, *sorted(draw(st.sets(st.integers(1, 100), max_size=3)))]
    return names, {start: dict(zip(names, draw(shares), strict=True)) for start in starts}


@settings(max_examples=20)
@given(shares_over_time())
def test_no_set_is_ahead_or_behind_by_a_whole_example_at_any_prefix(case):
    names, shares = case
    turns = Turns([shares_of(start, each, names) for start, each in shares.items()])
    owed, now = np.zeros(len(names)), np.zeros(len(names))
    for n in range(150):
        if n in shares:
            now = np.asarray(list(shares[n].values()), float) / sum(shares[n].values())
        owed += now
        turns.next()
        assert np.abs(owed - turns.counts).max() < 1 - 1 / max(2, 2 * len(names) - 2) + 1e-6


def numbered(name, size):
    return {"set": np.full(size, ord(name)), "number": np.arange(size)}


def read(mixed, batch_size=4, **options):
    with mw.batches(mixed, batch_size, SHARDING, **options) as data:
        return [
            (chr(s), int(n)) for batch in data for s, n in zip(batch["set"], batch["number"], strict=True)
        ]


def test_a_mixture_ends_before_a_set_would_be_read_once_more():
    mixed = mw.data.mixture({"a": numbered("a", 30), "b": numbered("b", 30)}, {"a": 2, "b": 1})
    once = read(mixed, 1, epochs=1)
    assert sorted(n for name, n in once if name == "a") == [*range(30)]
    assert len(once) in (44, 45, 46)
    twice = read(mixed, 1, epochs=2)
    assert twice[: len(once)] == once
    assert sorted(n for name, n in twice if name == "a") == sorted([*range(30)] * 2)


def test_shares_change_where_they_are_said_to():
    mixed = mw.data.mixture(
        {"a": numbered("a", 500), "b": numbered("b", 500)}, {"a": 1, "b": 0}, changes={100: {"a": 0, "b": 1}}
    )
    found = read(mixed, 10, epochs=1)
    assert [name for name, _ in found[:100]] == ["a"] * 100
    assert [name for name, _ in found[101:]] == ["b"] * (len(found) - 101)


def test_a_mixture_of_sets_that_do_not_go_together_is_refused():
    sets = {"a": {"x": np.zeros(5)}, "b": {"y": np.zeros(5)}}
    with (
        pytest.raises(mw.errors.ExamplesError, match=r"of 'a' are .* of 'b' are"),
        mw.batches(mw.data.mixture(sets, {"a": 1, "b": 1}), 4, SHARDING) as data,
    ):
        next(data)
    for shares, said in (
        ({"a": 1}, "the shares are of"),
        ({"a": 1, "b": -1}, "positive"),
        ({"a": 0, "b": 0}, "positive"),
    ):
        with pytest.raises(mw.errors.UsageError, match=said):
            mw.data.mixture(sets, shares)
    with pytest.raises(mw.errors.ExamplesError, match=r"'c' is of type generator"):
        mw.data.mixture({"c": (x for x in [])}, {"c": 1})
