import sys
import threading
from collections import UserDict
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
from meshwright.data._source import read_rows
from meshwright.errors import ExamplesError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding


class Many:
    """A data set that fetches many examples at once, as one batch."""

    def __len__(self):
        return 4

    def __getitems__(self, ids):
        return {"text": np.array(["a", "bb", "ccc", "dddd"])[ids]}

    def __getitem__(self, index):
        raise AssertionError("asked one by one")


TEXTS = {
    "a list": [{"text": "a" * (i + 1)} for i in range(4)],
    "arrays": {"text": np.array(["a", "aa", "aaa", "aaaa"])},
    "many at once": Many(),
    "an iterator": lambda: ({"text": "a" * (i + 1)} for i in range(4)),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_collate_makes_a_batch_of_a_list_of_examples(kind):
    collate = lambda examples: {"length": np.array([len(example["text"]) for example in examples])}
    batches = mw.batches(TEXTS[kind], 4, SHARDING, seed=None, collate=collate)
    assert next(batches)["length"].tolist() == [1, 2, 3, 4]
    batches.close()


def test_collate_runs_in_the_threads_that_read():
    threads = []
    collate = lambda examples: threads.append(threading.current_thread()) or {"x": np.zeros(len(examples))}
    batches = mw.batches({"x": np.zeros(100)}, 4, SHARDING, collate=collate)
    next(batches), next(batches)
    batches.close()
    assert threading.main_thread() not in threads


def test_lists_and_mappings_that_are_no_trees_become_arrays_by_name():
    collate = lambda examples: UserDict(ids=[[1, 2]] * len(examples), nested={"mask": np.ones(len(examples))})
    batch = next(mw.batches([0] * 4, 4, SHARDING, collate=collate))
    assert batch["ids"].shape == (4, 2)
    assert batch["nested"]["mask"].shape == (4,)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"text": ["a", "b"]}, "text is text, which no device can compute with"),
        ({"a": {"b": np.array([None, None])}}, "a/b is of type object"),
        ({"ids": [[1, 2], [3]]}, r"ids, which `collate` returned for 2 examples, cannot be an array"),
        ({"x": np.zeros(3)}, r"x, which .* for 2 examples, has shape \(3,\)"),
        ({"x": 1.5}, r"x, which .* has shape \(\)"),
    ],
)
def test_what_cannot_be_a_batch_is_named(returned, says):
    with pytest.raises(ExamplesError, match=says):
        next(mw.batches([0, 1], 2, SHARDING, collate=lambda examples: returned))


@pytest.mark.parametrize(
    "examples",
    [[{"id": 1, "text": "a"}] * 2, {"id": np.arange(2), "text": np.array(["a", "b"])}],
    ids=["a list", "arrays"],
)
def test_text_that_nothing_makes_numbers_of_is_named(examples):
    with pytest.raises(ExamplesError, match=r"text is text, .*\n.* give a `collate`"):
        next(mw.batches(examples, 2, SHARDING))


def test_lists_in_examples_are_stacked_as_arrays():
    examples = [{"tokens": [i, i + 1], "label": i} for i in range(2)]
    batch = next(mw.batches(examples, 2, SHARDING, seed=None))
    assert batch["tokens"].tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"tokens": [1, 2]}, r"tokens has shape \(3,\) in one, \(2,\) in the other"),
        ({"tokens": [[1], [1, 2]]}, "tokens has shape .* in one, of rows of several lengths in the other"),
        ({"ids": [1, 2, 3]}, r"one has \['tokens'\], the other \['ids'\]"),
    ],
)
def test_examples_that_do_not_stack_are_told_apart(second, says):
    with pytest.raises(ExamplesError, match=f"examples 0 and 1 differ: {says}"):
        next(mw.batches([{"tokens": [1, 2, 3]}, second], 2, SHARDING, seed=None))


def test_the_narrow_dtypes_of_ml_are_numbers():
    examples = {"x": np.ones((2, 3), ml_dtypes.bfloat16), "flag": np.ones(2, bool)}
    assert next(mw.batches(examples, 2, SHARDING))["x"].dtype == ml_dtypes.bfloat16


class Pair(NamedTuple):
    a: int
    b: np.ndarray


@pytest.mark.parametrize(
    "example",
    [
        lambda i: {"x": np.full(3, i, np.float32), "n": {"id": i, "flag": i > 1, "by": 0.5 * i}},
        lambda i: (np.float32(i), [i, i + 1], {"nothing": None}),
        lambda i: Pair(i, np.full((2, 2), i)),
        lambda i: {"mixed": i if i else 0.5, "np": np.int16(i)},
    ],
    ids=["dictionaries", "tuples", "other trees", "numbers of two types"],
)
def test_a_batch_is_what_the_leaves_of_its_examples_make_stacked(example):
    examples = [example(i) for i in range(4)]
    batch = read_rows(examples, np.arange(4))
    leaves = zip(*(jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, list)) for x in examples), strict=True)
    for found, column in zip(jax.tree.leaves(batch), leaves, strict=True):
        assert found.dtype == np.stack(column).dtype
        np.testing.assert_array_equal(found, np.stack(column))


def test_plain_examples_are_stacked_without_taking_each_apart_as_a_pytree():
    examples = [{"x": np.ones(3), "label": i} for i in range(64)]
    called = []

    def count(frame, event, argument):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("jax"):
            called.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        read_rows(examples, np.arange(64))
    finally:
        sys.setprofile(None)
    assert len(called) < 64
