import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.evaluation._loss import pieces


@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 6, 8, 12, 64]))
def test_pieces_divide_and_weigh_every_row_once(num_examples, ways):
    weights = np.zeros(num_examples)
    for rows, repeats in pieces(num_examples, ways):
        assert len(rows) % ways == 0
        np.add.at(weights, rows, 1 / repeats)
    np.testing.assert_allclose(weights, 1)


@given(st.integers(1, 300), st.sampled_from([1, 2, 3, 6, 8, 12, 64]))
def test_pieces_are_of_two_sizes_and_few(num_examples, ways):
    sizes = [len(rows) for rows, _ in pieces(num_examples, ways)]
    assert len(set(sizes)) <= 2
    assert len(sizes) <= 1 + np.ceil(np.log2(ways))
