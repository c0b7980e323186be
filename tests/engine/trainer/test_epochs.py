import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright.engine._trainer._epochs import Epochs
from meshwright.errors import InputError

SHARDING = mw.Layout(mw.make_mesh("data=-1")).batch_sharding
NUMBERS = {"id": np.arange(43)}


def epochs(examples=NUMBERS, size=8, num_epochs=3, seed=0, first_step=0):
    return Epochs(examples, size, SHARDING, seed=seed, num_epochs=num_epochs, first_step=first_step)


def read(data):
    return [np.asarray(batch["id"]).tolist() for batch in data]


def test_each_epoch_begins_anew_in_an_order_of_its_own():
    found = read(epochs())
    assert len(found) == 3 * 5
    each = [list(itertools.chain(*found[5 * i : 5 * i + 5])) for i in range(3)]
    assert all(len(set(ids)) == 40 for ids in each)
    assert each[0] != each[1] != each[2]


@given(st.integers(0, 14), st.sampled_from([NUMBERS, lambda epoch: {"id": np.arange(43) + epoch}]))
def test_a_state_continues_with_the_same_batches(num_read, examples):
    data, other = epochs(examples), epochs(examples)
    for _ in range(num_read):
        next(data)
    other.set_state(data.get_state())
    assert other.num_left() in (None, 15 - num_read)
    assert read(other) == read(data)


def test_a_state_keeps_the_order_of_its_call_and_that_of_before_calls_had_one():
    call, other = epochs(first_step=15), epochs(first_step=30)
    next(call)
    other.set_state(call.get_state())
    assert read(other) == read(call) != read(epochs())[1:]
    first, older = epochs(), epochs(first_step=15)
    next(first)
    older.set_state({name: x for name, x in first.get_state().items() if name != "drawn_from"})
    assert read(older) == read(first)


def test_another_batch_size_goes_on_with_what_is_left_of_an_epoch():
    data, other = epochs(), epochs(size=16)
    seen = list(itertools.chain(*read(itertools.islice(data, 2))))
    other.set_state(data.get_state())
    rest = next(other)["id"].tolist()
    assert other.at_end_of_epoch()
    assert len({*seen, *rest}) == 32


def test_the_end_of_an_epoch_is_known_before_the_next_begins():
    data = epochs()
    ends = [(data.epoch, data.at_end_of_epoch(), data.is_empty()) for _ in data]
    assert [i for i, (_, at_end, _) in enumerate(ends) if at_end] == [4, 9, 14]
    assert [epoch for epoch, *_ in ends] == [0] * 5 + [1] * 5 + [2] * 5
    assert [i for i, (*_, is_empty) in enumerate(ends) if is_empty] == [14]


def test_epochs_for_ever_do_not_end():
    data = epochs(num_epochs=None)
    assert len(read(itertools.islice(data, 100))) == 100
    assert not data.is_empty()
    assert data.num_left() is None


def test_fewer_epochs_than_were_read_leave_nothing():
    data, shorter = epochs(), epochs(num_epochs=1)
    read(itertools.islice(data, 7))
    shorter.set_state(data.get_state())
    assert shorter.is_empty()
    assert read(shorter) == []


def test_a_state_of_another_kind_of_run_is_refused():
    with pytest.raises(InputError, match="it was not saved by a Trainer"):
        epochs().set_state({"samples": 8, "seed": 0, "num_examples": 43})


def test_waiting_for_examples_is_counted():
    data = epochs(lambda: ({"id": i} for i in range(20)))
    jax.tree.map(len, list(data))
    assert data.wait_seconds > 0
