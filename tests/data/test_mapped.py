"""A function of each example, and what it draws."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from data.loaders import DataLoader, dataset, examples
from data.test_batches import one_process_of
from meshwright.errors import ExamplesError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding


def drawn(seed, epoch, number):
    return np.random.default_rng([seed, epoch, number]).random()


def noisy(example, rng):
    return {"id": example["id"], "x": rng.random()}


def pairs(batches, num_batches):
    """The id and the draw of each example of some batches."""
    read = (next(batches) for _ in range(num_batches))
    return [pair for batch in read for pair in zip(batch["id"].tolist(), batch["x"].tolist(), strict=True)]


KINDS = {
    "list": examples(10),
    "arrays": {"id": np.arange(10)},
    "data set": dataset(10),
    "function": lambda: iter(examples(10)),
    "function of the epoch": lambda epoch: examples(10),
    "iterable": DataLoader(examples(10), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_draws_by_the_seed_the_epoch_and_its_number(kind):
    found = pairs(mw.batches(mw.data.mapped(noisy, KINDS[kind]), 5, SHARDING.update(spec=()), seed=7), 4)
    assert sorted(i for i, _ in found[:10]) == sorted(i for i, _ in found[10:]) == list(range(10))
    assert all(x == drawn(7, place // 10, i) for place, (i, x) in enumerate(found))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@pytest.mark.daily(1)
def test_the_same_is_drawn_whatever_the_processes_threads_batches_and_crashes(kind, data):
    state, read = None, []
    for _ in range(data.draw(st.integers(1, 4))):
        num_processes, threads = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([0, 2]))
        size = 4 * data.draw(st.integers(1, 3))
        made = mw.data.mapped(noisy, KINDS[kind])
        readers = [
            one_process_of(num_processes, p, size, made, threads=threads) for p in range(num_processes)
        ]
        for reader in readers if state else ():
            reader.set_state(state)
        for _ in range(data.draw(st.integers(0, 3))):
            read += [pair for reader in readers for pair in pairs(reader, 1)]
            state = readers[0].get_state()
        for reader in readers:
            reader.close()
    assert all(x == drawn(0, place // 10, i) for place, (i, x) in enumerate(read))


def test_functions_are_applied_in_turn_and_share_one_generator():
    twice = mw.data.mapped(lambda x, *, rng: {**x, "y": rng.random()}, mw.data.mapped(noisy, examples(4)))
    batch = next(mw.batches(mw.data.mapped(lambda x: x, twice), 4, SHARDING, seed=None))
    both = [np.random.default_rng([0, 0, i]).random(2) for i in range(4)]
    assert np.array_equal(np.stack([batch["x"], batch["y"]], 1), both)


def test_a_function_that_asks_for_none_is_given_none():
    made = mw.data.mapped(functools.partial(np.add, 1), list(range(4)))
    assert next(mw.batches(made, 4, SHARDING, seed=None)).tolist() == [1, 2, 3, 4]


def test_without_shuffling_the_seed_can_be_told():
    batch = next(mw.batches(mw.data.mapped(noisy, examples(4)), 4, SHARDING, seed=None, map_seed=(3, 5)))
    assert batch["x"].tolist() == [drawn(3, 5, i) for i in range(4)]


def test_evaluation_draws_the_same_each_time():
    for _ in range(2):
        ((batch, _),) = mw.data.padded_batches(mw.data.mapped(noisy, examples(4)), 4, SHARDING)
        assert batch["x"].tolist() == [drawn(0, 0, i) for i in range(4)]


def test_mapped_examples_are_examples():
    made = mw.data.mapped(noisy, examples(4))
    assert (len(made), made[2]["x"]) == (4, drawn(0, 0, 2))
    assert [x["x"] for x in made.select(range(2))] == [made[0]["x"], made[1]["x"]]
    assert mw.data._internal.facts_of(made)["number of examples"] == "4"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (mw.data.Batched(DataLoader(examples(4), 4)), "these are mw.data.Batched.*\n.*, or in the loader"),
        (
            mw.data.Bucketed(examples(4), [1] * 4, (1,), {"id": 0}),
            r"mw.data.Bucketed\(mw.data.mapped\(function, examples\)",
        ),
        (7, "found int"),
    ],
)
def test_what_cannot_be_mapped_is_told(given, says):
    with pytest.raises(ExamplesError, match=says):
        mw.data.mapped(noisy, given)
