import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.observe._metrics import Histogram
from meshwright.observe._values import merge

# Of a few lengths, as each is compiled; any finite number that float32 holds.
floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=8, max_size=8)


def counted(values):
    return Histogram.of(np.asarray(values, np.float32))


@given(floats)
def test_each_value_is_between_the_edges_of_its_bin_or_beyond_the_outermost(values):
    for value in values:
        counts, (low, high) = counted([value] * 8).bins()
        assert list(counts) == [8]
        assert low <= value <= high or abs(value) > 2**23 == max(abs(low), abs(high))


@given(st.floats(2**-40, 2**23, width=32))
def test_a_bin_is_never_wider_than_a_quarter_of_its_values(value):
    _, (low, high) = counted([value] * 8).bins()
    assert high / low <= 1.25


@given(st.lists(floats, min_size=4, max_size=4))
def test_histograms_of_parts_add_up_to_that_of_the_whole(parts):
    whole = merge([{"x": counted(np.concatenate(parts))}])["x"]
    merged = merge({"x": counted(part)} for part in parts)["x"]
    assert [list(x) for x in merged.bins()] == [list(x) for x in whole.bins()]
    assert (merged.min, merged.max) == (whole.min, whole.max)


def test_bins_go_from_the_first_that_has_some_to_the_last_and_empty_ones_are_joined():
    counts, edges = counted([-1.1, 0, 1.3, 1.6, 1.7]).bins()
    assert counts.tolist() == [1, 0, 1, 0, 1, 2]
    assert edges.tolist() == [-1.25, -1, -(2**-40), 2**-40, 1.25, 1.5, 1.75]


def test_sums_and_extremes_are_those_of_the_array():
    histogram = counted([3, -1, 2])
    facts = (histogram.sum, histogram.sum_squares, histogram.min, histogram.max, histogram.num_not_finite)
    assert facts == (4, 14, -1, 3, 0)


def test_what_is_not_finite_is_in_no_bin_and_in_the_sums():
    histogram = counted([1, np.nan, -np.inf])
    assert (histogram.bins()[0].sum(), histogram.num_not_finite) == (1, 2)
    assert (histogram.min, histogram.max) == (1, 1)
    assert math.isnan(histogram.sum)
    assert counted([1, np.inf]).sum == np.inf


@pytest.mark.parametrize("values", [[], [np.nan]])
def test_a_histogram_of_nothing_changes_none_it_is_added_to(values):
    whole = counted(values) + counted([-5, -4])
    assert (whole.min, whole.max, whole.bins()[0].sum()) == (-5, -4, 2)


def test_counts_are_exact_where_float32_could_not_count_on():
    assert Histogram.of(jnp.broadcast_to(jnp.bool_(True), 2**24 + 2)).bins()[0] == 2**24 + 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "int8", "uint4", "bool"])
def test_arrays_of_any_dtype_are_counted(dtype):
    histogram = Histogram.of(jnp.asarray([0, 1, 1]).astype(dtype))
    assert (histogram.bins()[0].tolist()[-1], histogram.sum) == (2, 2)


def test_what_is_no_real_number_is_refused():
    for values in (jnp.ones(2, jnp.complex64), jax.random.key(0)):
        with pytest.raises(UsageError, match="expected real numbers"):
            Histogram.of(values)


def test_of_an_array_that_is_split_only_counts_move_between_devices():
    split = NamedSharding(mw.make_mesh("data=4,tensor=2"), P("data", "tensor"))
    array = jax.device_put(jnp.arange(64.0).reshape(8, 8), split)
    program = jax.jit(Histogram.of).lower(array).compile()
    assert "all-gather" not in program.as_text()
    assert np.array_equal(program(array).parts, Histogram.of(np.arange(64.0)).parts)


def test_no_gradient_flows_through_it():
    def loss(x):
        return (x**2).sum() + 0 * Histogram.of(x).sum

    assert jax.grad(loss)(jnp.float32(3)) == 6
