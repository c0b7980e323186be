"""Loaders that give batches, and streams that know where they stand."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from data.loaders import DataLoader, IterableDataset, Iterator, MapDataset, Tensor, dataset, examples
from data.test_batches import one_process_of
from meshwright.errors import ExamplesError, InputError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding


def batches(loader, size=4, **more):
    return mw.batches(mw.data.Batched(loader), size, SHARDING, **more)


def ids(batches):
    return [np.asarray(batch["id"]).tolist() for batch in batches]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(examples(10), 4),
        dataset(10).batch(4),
        lambda: DataLoader(examples(10), 4),
        lambda epoch: iter(DataLoader(examples(10), 4)),
        [{"id": np.arange(4)}, {"id": [4, 5, 6, 7]}, {"id": [8, 9]}],
    ],
    ids=["DataLoader", "grain", "function", "function of the epoch", "list"],
)
def test_batches_come_as_the_loader_has_them_and_its_smaller_last_is_left_out(loader):
    assert ids(batches(loader, epochs=2)) == 2 * [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_function_of_the_epoch_is_told_which():
    made = batches(lambda epoch: [{"id": np.full(4, epoch)}], epochs=3)
    assert [each[0] for each in ids(made)] == [0, 1, 2]


def test_pairs_of_tensors_are_tuples_of_arrays():
    batch = next(batches(DataLoader([(np.float32(i), i) for i in range(4)], 4)))
    assert isinstance(batch, tuple)
    assert [x.dtype for x in batch] == [np.float32, np.int64]


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"id": np.arange(8)}], "item 0 of the loader has 8 examples, but a batch has 4"),
        (
            [{"id": np.arange(3)}] * 2,
            "batch 0 of the loader has 3 examples, is not the last, but a batch has 4",
        ),
        ([{"id": np.arange(3)}], "batch 0 of the loader has 3 examples, but a batch has 4"),
        ([{"id": np.arange(4)}, {"id": np.arange(2)}, {"id": np.arange(4)}], "batch 1 .* is not the last"),
        (
            [{"id": np.arange(4), "x": np.arange(3)}],
            r"not a batch: the first dimensions .* \[\(3,\), \(4,\)\]",
        ),
        ([{"id": np.int64(1)}], "Leave out mw.data.Batched if the items are single examples"),
        ([{"id": list("abcd")}], "id is text"),
        ([{"id": [[1], [1, 2], [1], [1]]}], "not a batch of arrays"),
    ],
)
def test_what_is_no_batch_of_the_stated_size_is_told(items, says):
    with pytest.raises(ExamplesError, match=says):
        list(batches(items, epochs=1))


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ({"id": np.arange(4)}, "Pass a mapping of arrays without mw.data.Batched"),
        ((x for x in ()), "Give a function that makes it"),
        (7, "takes a loader that yields batches; found int"),
    ],
)
def test_what_is_no_loader_is_told(loader, says):
    with pytest.raises(ExamplesError, match=says):
        mw.data.Batched(loader)


def test_rows_are_all_or_local():
    with pytest.raises(ExamplesError, match="must be 'all' or 'local'"):
        mw.data.Batched([], rows="mine")


def test_a_loader_is_not_put_inside_a_function():
    with pytest.raises(ExamplesError, match=r"around the function: mw.data.Batched\(lambda epoch"):
        next(mw.batches(lambda epoch: mw.data.Batched(DataLoader(examples(8), 4)), 4, SHARDING))


def test_a_collate_is_for_examples():
    with pytest.raises(ExamplesError, match="let the loader call it"):
        mw.batches(mw.data.Batched([]), 4, SHARDING, collate=lambda examples: {})


@pytest.mark.parametrize(
    "given",
    [
        DataLoader(examples(40), 4),
        dataset(40).batch(4),
        dataset(40).batch(4).map(lambda batch: batch),
        lambda: DataLoader(examples(40), 4),
        lambda epoch: dataset(40).batch(4),
        iter(dataset(40).batch(4)) and dataset(40).batch(4),
    ],
    ids=["DataLoader", "grain", "grain, mapped", "function", "function of the epoch", "again"],
)
def test_a_loader_of_batches_that_is_given_as_examples_is_refused_with_what_to_write(given):
    with pytest.raises(ExamplesError, match=r"are already batches .*\n\s+Wrap it, mw.data.Batched\(loader\)"):
        next(mw.batches(given, 4, SHARDING))


@pytest.mark.parametrize(
    "given", [DataLoader(examples(8), None), dataset(8), lambda: dataset(8), IterableDataset(examples(8))]
)
def test_a_loader_of_examples_is_taken_as_one(given):
    found = ids(mw.batches(given, 4, SHARDING, seed=None, epochs=1))
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7]]


def as_bytes(items):
    """An iterator as grain's older loaders have, with bytes for a state."""
    return Iterator(items, lambda state: json.dumps(state).encode(), json.loads)


STREAMS = {
    "grain's batches": (lambda: mw.data.Batched(dataset(22).batch(4)), 20),
    "a DataLoader": (lambda: mw.data.Batched(DataLoader(examples(22), 4)), 20),
    "a function of the epoch": (lambda: mw.data.Batched(lambda epoch: dataset(22).batch(4)), 20),
    "an iterator of batches": (lambda: mw.data.Batched(as_bytes(dataset(400).batch(4))), 400),
    "an iterator of examples": (lambda: as_bytes(dataset(400)), 400),
    "an iterable of examples": (lambda: DataLoader(examples(22), None), 22),
    "a function that makes iterators with a state": (lambda: lambda: as_bytes(dataset(22)), 22),
}


@pytest.mark.parametrize("kind", STREAMS)
@given(data=st.data())
@pytest.mark.daily(3)
def test_after_any_crashes_a_stream_goes_on_where_it_stood(kind, data):
    make, per_epoch = STREAMS[kind]
    state, read = None, []
    for _ in range(data.draw(st.integers(1, 4))):
        num_processes, threads = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([0, 2]))
        readers = [one_process_of(num_processes, p, 4, make(), threads=threads) for p in range(num_processes)]
        for reader in readers if state else ():
            reader.set_state(state)
        for _ in range(data.draw(st.integers(0, 4))):
            read += [i for reader in readers for i in next(reader)["id"].tolist()]
            state = json.loads(json.dumps(readers[0].get_state()))
        for _ in range(data.draw(st.integers(0, 2))):  # done, but lost in the crash
            next(readers[0])
        for reader in readers:
            reader.close()
    assert read == [i % per_epoch for i in range(len(read))]


def test_with_a_state_nothing_is_read_again():
    first = mw.batches(Iterator(dataset(100)), 4, SHARDING)
    next(first), next(first)
    state, again = first.get_state(), Iterator(dataset(100))
    first.close()
    second = mw.batches(again, 4, SHARDING, num_threads=0)
    second.set_state(state)
    assert next(second)["id"].tolist() == [8, 9, 10, 11]
    assert again.num_read == 4


def test_an_iterator_is_read_once_and_its_end_is_that_of_the_data():
    assert ids(mw.batches(Iterator(dataset(10)), 4, SHARDING)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ExamplesError, match="read only once, but epochs=2"):
        mw.batches(Iterator(dataset(10)), 4, SHARDING, epochs=2)


@pytest.mark.parametrize("wrapped", [lambda it: it, lambda it: mw.data.mapped(lambda x: x, it)])
def test_an_iterator_stands_after_what_was_used_of_it_when_the_batches_are_closed(wrapped):
    iterator, found = Iterator(dataset(100)), []
    for _ in range(5):
        stream = mw.batches(wrapped(iterator), 4, SHARDING, num_threads=2)
        found += [*next(stream)["id"].tolist(), *next(stream)["id"].tolist()]
        stream.peek()
        stream.close()
    assert found == list(range(40))
    assert iterator.get_state() == {"next_index": 40}


def test_a_place_begins_again_also_while_threads_read_ahead():
    stream = mw.batches(Iterator(dataset(1000)), 4, SHARDING, num_threads=2)
    start = stream.get_state()
    for _ in range(50):
        stream.set_state(start)
        assert next(stream)["id"].tolist() == [0, 1, 2, 3]
    stream.close()


def test_a_loader_without_state_goes_on_with_the_batch_size_that_it_had():
    first = batches(DataLoader(examples(48), 4))
    next(first)
    other = batches(DataLoader(examples(48), 8), 8)
    with pytest.raises(InputError, match="not a whole number of the loader's batches"):
        other.set_state(first.get_state()) or next(other)


def test_every_process_takes_its_rows_of_the_batch_that_all_have():
    readers = [one_process_of(2, p, 4, mw.data.Batched(DataLoader(examples(8), 4))) for p in (0, 1)]
    assert [next(reader)["id"].tolist() for reader in readers] == [[0, 1], [2, 3]]
    assert all(reader.state_is_global for reader in readers)


def test_a_process_may_have_a_loader_of_its_own_rows_and_then_a_state_of_its_own():
    loaders = [DataLoader(examples(20)[p::2], 2) for p in (0, 1)]
    readers = [one_process_of(2, p, 4, mw.data.Batched(loaders[p], rows="local")) for p in (0, 1)]
    assert [next(reader)["id"].tolist() for reader in readers] == [[0, 2], [1, 3]]
    assert not any(reader.state_is_global for reader in readers)


def test_what_processes_compare_leaves_out_what_each_loader_has_of_its_own():
    loaders = [Iterator(MapDataset([], 2, lambda i: {"id": np.arange(2) + i})) for _ in (0, 1)]
    next(loaders[1])
    readers = [one_process_of(2, p, 4, mw.data.Batched(loaders[p], rows="local")) for p in (0, 1)]
    for reader in readers:
        next(reader)
    assert readers[0].facts() == readers[1].facts()
    assert readers[0].get_state() != readers[1].get_state()


@pytest.mark.parametrize("loader", [DataLoader(examples(10), 4), lambda: dataset(10).batch(4)])
def test_evaluation_counts_the_last_smaller_batch_too(loader):
    found = list(mw.data.padded_batches(mw.data.Batched(loader), 4, SHARDING))
    counted = [i for batch, weights in found for i, w in zip(batch["id"], weights, strict=True) if w]
    assert counted == list(range(10))
    assert {len(batch["id"]) for batch, _ in found} == {4}


def test_an_example_of_a_loader_and_the_check_of_its_first_batch_start_it_once():
    starts = []
    loader = mw.data.Batched(lambda: starts.append(None) or [{"x": np.arange(8) + 3}, {"x": np.arange(2)}])
    sharding = mw.Layout(mw.make_mesh("data=8")).batch_sharding
    assert mw.data._internal.some_rows(loader, 8, sharding)["x"].tolist() == [3]
    assert len(starts) == 1


def test_examples_of_a_loaders_batches_are_their_rows():
    assert [x["id"] for x in mw.data._internal.each_example(mw.data.Batched(dataset(10).batch(4)))] == list(
        range(10)
    )
    assert [x["id"] for x in mw.data._internal.each_example({"id": np.arange(3)})] == [0, 1, 2]


def test_an_iterator_is_nothing_to_evaluate_on_again_and_again():
    with pytest.raises(ExamplesError, match="an evaluation reads all examples each time"):
        list(mw.data.padded_batches(Iterator(dataset(8)), 4, SHARDING))


def test_tensors_are_read_as_numpy_does():
    batch = next(batches([{"id": Tensor([1, 2, 3, 4])}]))
    assert isinstance(batch["id"], np.ndarray)
    assert list(itertools.chain(*ids([batch]))) == [1, 2, 3, 4]
