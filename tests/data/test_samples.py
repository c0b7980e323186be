import functools

import pytest

import meshwright as mw
from meshwright.errors import ExamplesError, InputError

SHARDING = mw.Layout(mw.make_mesh("data=2,tensor=4")).batch_sharding


def of_epoch(epoch):
    return [{"id": 10 * epoch + i} for i in range(5)]


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_a_function_is_asked_for_each_epoch_and_the_stream_runs_on():
    batches = mw.batches(of_epoch, 4, SHARDING, seed=None, epochs=2)
    assert ids(batches) == [[0, 1, 2, 3], [4, 10, 11, 12]]


def test_a_function_without_arguments_is_called_anew_for_each_epoch():
    calls = []
    examples = lambda: calls.append("called") or iter(of_epoch(len(calls)))
    batches = mw.batches(examples, 4, SHARDING, epochs=2, num_threads=0)
    assert ids(batches) == [[10, 11, 12, 13], [14, 20, 21, 22]]
    assert len(calls) == 2


def test_what_is_bound_or_has_a_default_is_no_epoch():
    def read(folder, start=7):
        return iter([{"id": folder + start + i} for i in range(4)])

    batches = mw.batches(functools.partial(read, 100), 4, SHARDING, epochs=1)
    assert ids(batches) == [[107, 108, 109, 110]]


def test_an_iterable_is_read_as_far_as_the_run_had_come_and_skipped():
    pulled = []

    def examples():
        for i in range(100):
            pulled.append(i)
            yield {"id": i}

    first = mw.batches(examples, 4, SHARDING)
    next(first), next(first)
    again = mw.batches(examples, 4, SHARDING, num_threads=0)
    again.set_state(first.get_state())
    first.close()
    pulled.clear()
    assert next(again)["id"].tolist() == [8, 9, 10, 11]
    assert pulled == list(range(12))


def test_peeking_reads_nothing_twice():
    calls = []
    batches = mw.batches(lambda: calls.append(1) or iter(of_epoch(0)), 4, SHARDING, num_threads=0)
    assert batches.peek()["id"].tolist() == next(batches)["id"].tolist() == [0, 1, 2, 3]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (lambda epoch: of_epoch(epoch)[:2], "4 examples of epoch 0 were read then, but there are only 2 now"),
        (lambda: iter(of_epoch(0)[:3]), "4 examples of epoch 0 were read then, but there are only 3 now"),
        (of_epoch(0), "num_examples was None, is 5"),
    ],
)
def test_other_data_than_was_read_is_refused_where_a_run_continues(now, says):
    batches, again = mw.batches(of_epoch, 4, SHARDING), mw.batches(now, 4, SHARDING)
    next(batches)
    with pytest.raises(InputError, match=says):
        again.set_state(batches.get_state()) or next(again)


def test_an_iterator_that_is_used_up_is_told_from_a_new_one():
    once = iter(of_epoch(0))
    batches = mw.batches(lambda: once, 4, SHARDING)
    next(batches)
    with pytest.raises(ExamplesError, match=r"epoch 1 has no examples.\s+.* a new iterable each time"):
        next(batches)


@pytest.mark.parametrize(
    ("examples", "says"),
    [
        (lambda epoch, folder: [], r"this one requires \['epoch', 'folder'\]"),
        (lambda epoch: None, "returned a value of type NoneType"),
        (lambda epoch: {}, "first dimensions must be equal"),
    ],
)
def test_what_a_function_may_not_be_or_return_is_told(examples, says):
    with pytest.raises(ExamplesError, match=says):
        next(mw.batches(examples, 4, SHARDING))
