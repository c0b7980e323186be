import itertools
import threading

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.data._batches import Batches
from meshwright.data._order import record_ids
from meshwright.errors import ExamplesError, InputError, LayoutError, UsageError

SHARDING = mw.Layout(mw.make_mesh("data=2,fsdp=2,tensor=2")).batch_sharding


def numbers(n):
    return {"id": np.arange(n)}


def taken(iterator, num_batches):
    return [next(iterator)["id"].tolist() for _ in range(num_batches)]


def one_process_of(num_processes, process, batch_size, examples, **more):
    """What process `process` reads, without starting any."""
    share = batch_size // num_processes
    rows = np.arange(process * share, (process + 1) * share)
    return Batches(
        examples,
        batch_size,
        rows=rows,
        to_global=lambda batch: batch,
        seed=0,
        epochs=None,
        num_threads=more.get("threads", 0),
    )


def test_batches_follow_the_order():
    batches = mw.batches(numbers(10), 4, SHARDING, seed=3)
    assert np.ravel(taken(batches, 5)).tolist() == record_ids(np.arange(20), 10, 3).tolist()


def test_epochs_end_with_the_last_whole_batch():
    assert len(list(mw.batches(numbers(10), 4, SHARDING, epochs=2))) == 5
    assert len(list(mw.batches(numbers(11), 4, SHARDING, epochs=1))) == 2


def rows(n):
    return [{"id": np.int64(i)} for i in range(n)]


def of_epoch(epoch):
    """Another number of examples in each epoch, and others."""
    return {"id": np.arange(5 + epoch % 3) + 100 * epoch}


def order_of_epochs():
    for epoch in itertools.count():
        ids = of_epoch(epoch)["id"]
        yield from ids[record_ids(np.arange(len(ids)) + epoch * len(ids), len(ids), 0)].tolist()


KINDS = {
    "arrays": (numbers(17), lambda: record_ids(np.arange(1000), 17, 0).tolist()),
    "a list": (rows(17), lambda: record_ids(np.arange(1000), 17, 0).tolist()),
    "a function of the epoch": (of_epoch, order_of_epochs),
    "an iterator factory": (lambda: iter(rows(7)), lambda: itertools.cycle(range(7))),
}


@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.daily(2)
def test_after_any_crashes_and_resizes_every_sample_is_read_exactly_once_in_order(kind, data):
    examples, order = KINDS[kind]
    state, read = None, []
    for _ in range(data.draw(st.integers(1, 5))):
        num_processes = data.draw(st.sampled_from([1, 2, 4]))
        batch_size = 4 * data.draw(st.integers(1, 4))
        threads = data.draw(st.sampled_from([0, 2]))
        readers = [
            one_process_of(num_processes, p, batch_size, examples, threads=threads)
            for p in range(num_processes)
        ]
        for reader in readers if state else ():
            reader.set_state(state)
        for _ in range(data.draw(st.integers(0, 4))):
            read += [i for reader in readers for i in next(reader)["id"].tolist()]
            state = readers[0].get_state()
        for _ in range(data.draw(st.integers(0, 2))):  # done, but lost in the crash: no state was kept
            next(readers[0])
        for reader in readers:
            reader.close()
    assert read == list(itertools.islice(order(), len(read)))


@pytest.mark.parametrize("num_threads", [0, 3])
def test_the_state_counts_what_was_returned_not_what_was_read_ahead(num_threads):
    batches = mw.batches(numbers(100), 8, SHARDING, num_threads=num_threads)
    taken(batches, 3)
    assert batches.get_state()["samples"] == 24
    again = mw.batches(numbers(100), 8, SHARDING, num_threads=num_threads)
    again.set_state(batches.get_state())
    assert taken(again, 4) == taken(batches, 4)


def test_set_state_forgets_what_was_read_ahead():
    batches = mw.batches(numbers(100), 8, SHARDING, num_threads=2)
    start, first = batches.get_state(), taken(batches, 2)
    batches.set_state(start)
    assert taken(batches, 2) == first


def test_other_data_or_another_seed_is_refused():
    batches = mw.batches(numbers(10), 4, SHARDING, seed=1)
    with pytest.raises(InputError, match="num_examples was 9, is 10"):
        batches.set_state(mw.batches(numbers(9), 4, SHARDING, seed=1).get_state())
    with pytest.raises(InputError, match="seed was 2, is 1"):
        batches.set_state(mw.batches(numbers(10), 4, SHARDING, seed=2).get_state())


def test_threads_read_ahead_while_the_caller_is_busy():
    third_batch_read = threading.Event()

    class Source:
        calls = 0

        def __len__(self):
            return 100

        def __getitem__(self, index):
            Source.calls += 1
            if Source.calls == 24:
                third_batch_read.set()
            return {"id": np.int64(index)}

    batches = mw.batches(Source(), 8, SHARDING, num_threads=1)
    next(batches)
    assert third_batch_read.wait(timeout=60)
    batches.close()


def test_a_source_that_fetches_many_at_once_is_asked_once_a_batch():
    asked = []

    class Source:
        def __len__(self):
            return 10

        def __getitem__(self, index):
            raise AssertionError("asked one by one")

        def __getitems__(self, ids):
            asked.append(ids)
            return [{"id": np.int64(i)} for i in ids]

    assert len(taken(mw.batches(Source(), 4, SHARDING, num_threads=0), 2)[0]) == 4
    assert [len(ids) for ids in asked] == [4, 4]


def test_a_list_of_examples_is_stacked():
    examples = [{"x": np.full(3, i, np.float32), "y": i} for i in range(8)]
    batch = next(mw.batches(examples, 4, SHARDING, seed=None))
    assert batch["x"].shape == (4, 3)
    assert batch["y"].tolist() == [0, 1, 2, 3]


def test_ragged_examples_are_named():
    examples = [{"tokens": np.zeros(12 if i != 2 else 9)} for i in range(4)]
    with pytest.raises(
        ExamplesError, match=r"examples 0 and 2 differ: tokens has shape \(12,\) in one, \(9,\)"
    ):
        next(mw.batches(examples, 4, SHARDING, seed=None))


def test_a_read_that_failed_once_is_tried_again():
    class Flaky(list):
        failures = 1

        def __getitem__(self, index):
            if index == 2 and Flaky.failures:
                Flaky.failures = 0
                raise OSError("a network that was away")
            return super().__getitem__(index)

    batches = mw.batches(Flaky({"id": np.int64(i)} for i in range(8)), 4, SHARDING, seed=None, num_threads=1)
    with pytest.raises(OSError, match="was away"):
        next(batches)
    assert taken(batches, 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    batches.close()


def test_a_batch_that_cannot_be_made_is_not_skipped_when_tried_again():
    examples = [{"x": np.zeros(i + 1)} for i in range(8)]
    batches = mw.batches(examples, 4, SHARDING, num_threads=2)
    for _ in range(2):
        with pytest.raises(ExamplesError):
            next(batches)
    assert batches.get_state()["samples"] == 0


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        ([], "length is 0"),
        ({}, "must be equal"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, r"\{'x': 3, 'y': 4\}"),
        ((np.zeros(3), np.zeros(3)), "Give the arrays names"),
        (iter([1]), "can be read only once"),
        (7, "must have __len__ and __getitem__"),
    ],
)
def test_what_is_no_set_of_examples_is_refused(examples, says):
    with pytest.raises(ExamplesError, match=says):
        mw.batches(examples, 4, SHARDING)


def test_a_batch_size_that_does_not_divide_is_refused():
    with pytest.raises(LayoutError, match="batch of 6 examples cannot be split into 4 equal parts"):
        mw.batches(numbers(10), 6, SHARDING)


def test_peek_shows_the_next_batch_and_does_not_move():
    batches = mw.batches(numbers(10), 4, SHARDING)
    assert batches.peek()["id"].tolist() == taken(batches, 1)[0]
    with pytest.raises(UsageError, match="do not fill one batch"):
        mw.batches(numbers(3), 4, SHARDING, epochs=1).peek()


def test_waiting_for_examples_is_counted():
    batches = mw.batches([{"x": i} for i in range(8)], 8, SHARDING)
    next(batches)
    assert batches.wait_seconds > 0
    batches.close()


def test_each_device_gets_its_own_rows():
    place = mw.data._internal.as_global(8, SHARDING)
    global_batch = place({"x": np.arange(8)})["x"]
    assert global_batch.sharding == SHARDING
    for shard in global_batch.addressable_shards:
        assert np.array_equal(shard.data, np.arange(8)[shard.index])
    assert jax.numpy.array_equal(global_batch, np.arange(8))


def test_leaving_the_context_stops_the_threads():
    with mw.batches(rows(64), 4, SHARDING, num_threads=2) as data:
        next(data)
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("input")]
        assert threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
