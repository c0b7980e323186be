"""What is told of examples so that processes can see whether they read the same."""

import random

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.data._source import facts_of

ROWS = np.arange(40.0, dtype=np.float32).reshape(10, 4)


@pytest.fixture
def split():
    return mw.Layout(mw.make_mesh("data=-1")).batch_sharding


def test_the_number_and_three_examples_are_told():
    assert [*facts_of({"x": ROWS})] == ["number of examples", "example 0", "example 5", "example 9"]
    assert facts_of({"x": ROWS})["number of examples"] == "10"


@pytest.mark.parametrize("other", [ROWS[::-1], ROWS.astype(np.float64), ROWS.reshape(10, 2, 2), ROWS + 1])
def test_other_values_types_and_shapes_are_seen(other):
    assert facts_of({"x": ROWS})["example 0"] != facts_of({"x": other})["example 0"]


def test_equal_examples_in_another_container_are_equal():
    assert facts_of({"x": ROWS}) == facts_of([{"x": x} for x in ROWS])


def test_texts_and_numbers_count_and_objects_by_their_type():
    said = facts_of([{"text": "a", "n": 1, "of": object()}, {"text": "b", "n": 1, "of": object()}])
    assert said == facts_of([{"text": "a", "n": 1, "of": object()}, {"text": "b", "n": 1, "of": object()}])
    assert said["example 0"] != said["example 1"]


def test_no_examples_are_told_of_too():
    assert facts_of([]) == facts_of({"x": ROWS[:0]}) == {"number of examples": "0"}


def test_of_examples_that_are_made_at_random_the_number_stands_alone():
    class Noisy(list):
        def __getitem__(self, i):
            return random.random()

    assert facts_of(Noisy([0] * 10)) == {"number of examples": "10"}


@pytest.mark.parametrize("examples", [{"x": ROWS}, lambda: iter([{"x": x} for x in ROWS])])
def test_what_batches_tell_takes_no_batch(examples, split):
    data, untold = (mw.batches(examples, 8, split, seed=None) for _ in range(2))
    said = data.facts()
    assert said["example 0"] == facts_of({"x": ROWS})["example 0"]
    assert said["position"] == str(untold.get_state())
    np.testing.assert_array_equal(*(jax.tree.leaves(next(each))[0] for each in (data, untold)))
    data.close()
    untold.close()
