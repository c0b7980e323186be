import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.data._order import record_ids


@given(n=st.integers(1, 3000), seed=st.integers(-5, 2**40), epoch=st.integers(0, 5))
def test_each_epoch_reads_every_record_once(n, seed, epoch):
    ids = record_ids(np.arange(n) + epoch * n, n, seed)
    assert sorted(ids) == list(range(n))


@given(n=st.integers(1, 10**12), start=st.integers(0, 10**12), seed=st.integers(0, 99))
def test_the_record_at_a_position_depends_on_nothing_else(n, start, seed):
    block = record_ids(np.arange(start, start + 50), n, seed)
    assert [record_ids(np.array([start + i]), n, seed)[0] for i in (0, 7, 49)] == [
        block[i] for i in (0, 7, 49)
    ]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [record_ids(np.arange(100) + epoch * 100, 100, seed) for epoch in (0, 1) for seed in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_without_a_seed_records_come_in_their_own_order():
    assert list(record_ids(np.arange(7), 3, None)) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("n", [1000, 1437, 65536])
def test_the_order_looks_random(n):
    ids = record_ids(np.arange(n), n, 0)
    assert abs(np.corrcoef(ids, np.arange(n))[0, 1]) < 0.1
    assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < 0.1


def test_the_order_is_promised_never_to_change():
    """A run that is continued under a newer version must read what the older one would have read."""
    assert list(record_ids(np.arange(8), 1000, 42)) == [33, 921, 412, 899, 634, 181, 76, 917]
