import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.checkpoints._arrays import _chunks


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 200))
def test_slabs_are_the_array_in_its_order_and_no_larger_than_allowed(shape, limit):
    array = np.arange(math.prod(shape)).reshape(shape)
    unbounded, _chunks._SLAB = _chunks._SLAB, limit
    try:
        pieces = [array[index].ravel() for index in _chunks.slabs(tuple(shape), array.itemsize)]
    finally:
        _chunks._SLAB = unbounded
    np.testing.assert_array_equal(np.concatenate([[], *pieces]), array.ravel())
    assert all(piece.nbytes <= max(limit, array.itemsize) for piece in pieces)
