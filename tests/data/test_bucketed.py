"""Examples of several lengths, in batches of a few."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from data.test_batches import one_process_of
from meshwright.errors import ExamplesError, InputError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding
BUCKETS = (4, 8, 16)


def texts(lengths):
    return [{"tokens": np.full(n, 1 + i), "id": i} for i, n in enumerate(lengths)]


def bucketed(lengths, pad=None, **more):
    return mw.data.Bucketed(
        texts(lengths), lengths, **{"buckets": BUCKETS, "pad": pad or {"tokens": 0}} | more
    )


LENGTHS = np.random.default_rng(0).integers(1, 17, 50).tolist()


def bucket_of(length):
    return next(bucket for bucket in BUCKETS if length <= bucket)


def read(batches):
    return [(batch["id"].tolist(), batch["tokens"].shape[1]) for batch in batches]


@given(
    st.lists(st.integers(1, 16), min_size=1, max_size=60),
    st.sampled_from([2, 4, 6]),
    st.sampled_from([None, 0, 5]),
)
def test_each_example_comes_once_an_epoch_in_a_batch_of_its_bucket(lengths, size, seed):
    found = read(mw.batches(bucketed(lengths), size, SHARDING, seed=seed, epochs=1))
    ids = list(itertools.chain(*(ids for ids, _ in found)))
    assert len(ids) == len(set(ids)) == len(lengths) // size * size
    assert all(length == max(bucket_of(lengths[i]) for i in ids) for ids, length in found)
    mixed = [ids for ids, _ in found if len({bucket_of(lengths[i]) for i in ids}) > 1]
    assert mixed == [ids for ids, _ in found[len(found) - len(mixed) :]]
    assert len(mixed) <= len(BUCKETS) - 1


@given(data=st.data())
def test_after_any_crashes_and_resizes_every_example_is_read_exactly_once_an_epoch(data):
    state, read, examples = None, [], bucketed(LENGTHS)
    for _ in range(data.draw(st.integers(1, 6))):
        num_processes, size = data.draw(st.sampled_from([1, 2, 4])), 4 * data.draw(st.integers(1, 4))
        threads = data.draw(st.sampled_from([0, 2]))
        readers = [
            one_process_of(num_processes, p, size, examples, threads=threads) for p in range(num_processes)
        ]
        for reader in readers if state else ():
            reader.set_state(state)
        for _ in range(data.draw(st.integers(0, 5))):
            taken = [next(reader) for reader in readers]
            assert len({batch["tokens"].shape for batch in taken}) == 1
            read += [i for batch in taken for i in batch["id"].tolist()]
            state = json.loads(json.dumps(readers[0].get_state()))
        for _ in range(data.draw(st.integers(0, 2))):  # done, but lost in the crash
            next(readers[0])
        for reader in readers:
            reader.close()
    for epoch in range(0, len(read), 50):
        assert len(set(read[epoch : epoch + 50])) == len(read[epoch : epoch + 50])


@given(st.integers(0, 30), st.sampled_from([None, 3]))
def test_a_state_continues_with_the_same_batches_on_any_number_of_processes(num_read, seed):
    whole = mw.batches(bucketed(LENGTHS), 4, SHARDING, seed=seed)
    for _ in range(num_read):
        next(whole)
    again = mw.batches(bucketed(LENGTHS), 4, SHARDING, seed=seed)
    again.set_state(json.loads(json.dumps(whole.get_state())))
    assert read(itertools.islice(again, 6)) == read(itertools.islice(whole, 6))
    whole.close(), again.close()


def test_what_is_padded_is_padded_at_its_end_by_its_own_value():
    examples = [{"tokens": [7] * n, "text": {"labels": np.full((n, 2), n)}, "n": n} for n in (2, 3)]
    made = mw.data.Bucketed(examples, [2, 3], (4,), {"tokens": 0, "text/labels": -100})
    batch = next(mw.batches(made, 2, SHARDING, seed=None))
    assert batch["tokens"].tolist() == [[7, 7, 0, 0], [7, 7, 7, 0]]
    assert batch["text"]["labels"][0, :, 0].tolist() == [2, 2, -100, -100]
    assert batch["n"].tolist() == [2, 3]


def test_a_collate_is_told_the_length_of_the_whole_batch():
    def collate(examples, length):
        return {"id": [x["id"] for x in examples], "length": [length] * len(examples)}

    lengths = [1, 1, 1, 9]
    made = mw.data.Bucketed(texts(lengths), lengths, BUCKETS)
    readers = [
        mw.data._internal.Batches(
            made,
            4,
            rows=rows,
            to_global=lambda batch: batch,
            collate=collate,
            seed=None,
            epochs=1,
            num_threads=0,
        )
        for rows in (np.array([0, 1]), np.array([2, 3]))
    ]
    assert [next(reader)["length"].tolist() for reader in readers] == [[16, 16]] * 2


def test_the_shapes_of_all_batches_are_known_before_the_first_is_taken():
    batches = mw.batches(bucketed([1, 2, 9, 9]), 2, SHARDING, seed=None)
    assert batches.peek()["tokens"].shape == (2, 4)
    assert [shape["tokens"].shape for shape in batches.shapes()] == [(1, 16)]
    assert mw.batches({"x": np.arange(4)}, 2, SHARDING).shapes() == []


def test_mapped_examples_are_padded_after_they_are_mapped():
    longer = mw.data.mapped(lambda x, rng: {"tokens": np.append(x["tokens"], rng.integers(9))}, texts([1, 2]))
    batch = next(mw.batches(mw.data.Bucketed(longer, [2, 3], (4,), {"tokens": 0}), 2, SHARDING, seed=None))
    drawn = [np.random.default_rng([0, 0, i]).integers(9) for i in (0, 1)]
    assert batch["tokens"].tolist() == [[1, drawn[0], 0, 0], [2, 2, drawn[1], 0]]


def test_evaluation_keeps_the_order_and_pads_each_batch_to_its_longest():
    found = [
        (batch["id"].tolist(), batch["tokens"].shape[1], list(weights))
        for batch, weights in mw.data.padded_batches(bucketed([1, 9, 2, 3, 1]), 2, SHARDING)
    ]
    assert found == [([0, 1], 16, [1, 1]), ([2, 3], 4, [1, 1]), ([4, 4], 4, [1, 0])]


def test_other_lengths_than_before_are_refused():
    state = mw.batches(bucketed([1, 9, 1]), 2, SHARDING).get_state()
    with pytest.raises(InputError, match=r"lengths was \w+, is \w+"):
        mw.batches(bucketed([9, 1, 1]), 2, SHARDING).set_state(state)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"lengths": [1, 2]}, r"a whole number for each of 3 examples; found int64\[2\]"),
        ({"lengths": [1, 2, 0.5]}, "a whole number for each"),
        (
            {"lengths": [1, 2, 30]},
            "1 examples are longer than the largest bucket, 16; example 2 has length 30",
        ),
        ({"buckets": (8, 4)}, "they must be positive and ascending"),
        ({"examples": {"tokens": np.zeros((3, 2))}}, "that can be indexed, such as a list of dictionaries"),
        ({"examples": lambda: iter([])}, "mw.data.Batched(loader, shapes="),
    ],
)
def test_what_cannot_be_grouped_is_told(more, says):
    given = {"examples": texts([1, 2, 3]), "lengths": [1, 2, 3], "buckets": BUCKETS, "pad": {"tokens": 0}}
    with pytest.raises(ExamplesError, match=says.replace("(loader", r"\(loader")):
        mw.data.Bucketed(**given | more)


@pytest.mark.parametrize(
    ("given", "collate", "says"),
    [
        (
            bucketed([2, 3], {"token": 0}),
            None,
            "'token', which an example does not have. Did you mean 'tokens'",
        ),
        (bucketed([2, 3], {"id": 0}), None, r"id of shape \(\) cannot be padded"),
        (
            mw.data.Bucketed(texts([9, 9]), [2, 2], BUCKETS, {"tokens": 0}),
            None,
            "Check that `lengths` has the length of each",
        ),
        (mw.data.Bucketed(texts([2, 3]), [2, 3], BUCKETS), None, "has no `pad`"),
        (
            mw.data.Bucketed(texts([2, 3]), [2, 3], BUCKETS),
            lambda examples: {},
            "a collate that takes `length`",
        ),
        (texts([2, 2]), lambda examples, length: {}, "only mw.data.Bucketed"),
        (lambda epoch: bucketed([2, 3]), None, "a function of the epoch cannot return one"),
    ],
)
def test_what_does_not_fit_together_is_told(given, collate, says):
    with pytest.raises(ExamplesError, match=says):
        next(mw.batches(given, 2, SHARDING, collate=collate))
