import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UsageError
from meshwright.observe._metrics import Histogram, Mean
from meshwright.observe._values import Packed, merge

# Whole numbers whose sums float64 holds exactly, so that equal means equal.
weighted = st.lists(st.tuples(st.integers(-1000, 1000), st.integers(0, 50)), min_size=1, max_size=40)


def mean_of(pairs):
    values, weights = np.array(pairs, np.int64).reshape(-1, 2).T
    return Mean(np.float32((values * weights).sum()), np.float32(weights.sum()))


@given(weighted, st.data())
def test_merging_any_split_of_an_interval_gives_the_mean_over_all_of_it(pairs, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pairs)), max_size=6)))
    parts = [pairs[a:b] for a, b in zip([0, *cuts], [*cuts, len(pairs)], strict=True)]
    total, count = sum(v * w for v, w in pairs), sum(w for _, w in pairs)
    merged = merge({"loss": mean_of(part)} for part in parts)["loss"]
    assert merged == total / count if count else math.isnan(merged)


def test_means_add_up_to_the_mean_of_the_whole():
    values, weights = jnp.arange(10.0), jnp.array([1.0] * 7 + [5.0] * 3)
    parts = Mean.of(values[:6], weights[:6]) + Mean.of(values[6:], weights[6:])
    assert parts.value == Mean.of(values, weights).value == (21 + 5 * 24) / 22


def test_a_mean_goes_through_jit_and_scan_as_two_scalars():
    def add(mean, value):
        return mean + Mean.of(value), None

    mean, _ = jax.jit(lambda xs: jax.lax.scan(add, Mean(0.0, 0.0), xs))(jnp.arange(12.0).reshape(3, 4))
    assert (mean.total, mean.count, mean.value) == (66, 12, 5.5)


def test_weights_broadcast_from_examples_to_their_tokens():
    losses_BL = jnp.array([[1.0, 3.0], [100.0, 100.0]])
    mean = Mean.of(losses_BL, jnp.array([[1], [0]]))
    assert (mean.total, mean.count) == (4, 2)


def test_what_a_padded_example_computes_does_not_count():
    assert Mean.of(jnp.array([2.0, jnp.nan, jnp.inf]), jnp.array([1, 0, 0])).value == 2


def test_a_mean_of_nothing_is_nan():
    assert math.isnan(Mean.of(jnp.zeros(0)).value)
    assert math.isnan(Mean.of(jnp.ones(3), jnp.zeros(3)).value)


def test_small_dtypes_are_summed_in_float32():
    # In bfloat16 a sum of ones ends at 256, and the count could not be 1001.
    mean = Mean.of(jnp.ones(1001, jnp.bfloat16))
    assert (mean.total, mean.count, mean.total.dtype) == (1001, 1001, jnp.float32)
    assert Mean.of(jnp.array([True, False, True, True])).value == 0.75


def test_merge_sums_on_the_host_in_float64():
    steps = [{"loss": np.float32(2**24)}, *[{"loss": np.float32(1)}] * 3]
    assert merge(steps) == {"loss": (2**24 + 3) / 4}


@pytest.mark.parametrize(
    "dtype",
    ["bfloat16", "float8_e4m3fn", "float16", "float32", "float64", "int8", "uint32", "int64", "bool"],
)
def test_merge_takes_scalars_of_any_dtype(dtype):
    one = np.asarray(1).astype(jnp.dtype(dtype))
    assert merge([{"x": one}, {"x": Mean(one, one)}, {"x": 4}]) == {"x": 2.0}


def test_a_plain_scalar_weighs_one_and_a_mean_its_count():
    assert merge([{"loss": 10.0}, {"loss": Mean(6.0, 3.0)}]) == {"loss": 4.0}


def test_nothing_counted_is_nan():
    merged = merge([{"none": Mean(0.0, 0.0), "infinite": Mean(math.inf, 0)}])
    assert all(math.isnan(value) for value in merged.values())


def test_nan_and_infinity_survive_a_merge():
    merged = merge([{"a": math.nan, "b": math.inf, "c": -math.inf}, {"a": 1.0, "b": 1.0, "c": 1.0}])
    assert math.isnan(merged["a"])
    assert (merged["b"], merged["c"]) == (math.inf, -math.inf)


def test_a_metric_of_some_steps_is_the_mean_over_those():
    assert merge([{"loss": 1.0}, {"loss": 3.0, "grad_norm": 7.0}]) == {"loss": 2.0, "grad_norm": 7.0}


def test_a_metric_that_is_no_scalar_is_named():
    with pytest.raises(UsageError, match=r"'per_layer' has the shape \(4,\).*\n.*Mean.of"):
        merge([{"loss": 1.0, "per_layer": np.zeros(4)}])


def test_packed_means_are_the_means_in_one_array():
    means = {"loss": Mean(jnp.float32(6), jnp.float32(4)), "right": Mean(jnp.int32(3), jnp.int32(4))}
    packed = jax.jit(Packed.of)(means)
    assert len(jax.tree.leaves(packed)) == 1
    assert {name: float(mean.value) for name, mean in packed.items()} == {"loss": 1.5, "right": 0.75}
    assert merge([packed, packed]) == {"loss": 1.5, "right": 0.75}
    with pytest.raises(KeyError):
        packed["left"]


def test_packed_histograms_are_one_array_more_and_add_up():
    metrics = {
        "a": Histogram.of(jnp.ones(3)),
        "loss": Mean.of(jnp.ones(2)),
        "b": Histogram.of(-jnp.ones(2)),
        "fp8": Mean(jnp.float8_e5m2(1), 1),
    }
    packed = jax.jit(Packed.of)(metrics)
    assert len(jax.tree.leaves(packed)) == 2
    assert list(packed) == ["fp8", "loss", "a", "b"]
    merged = merge([packed, packed, {"a": Histogram.of(jnp.ones(1))}])
    assert (merged["loss"], merged["a"].sum, merged["b"].sum, merged["b"].max) == (1, 7, -4, -1)
    assert packed["b"].sum == -2


def test_packed_metrics_of_several_layouts_merge_as_if_they_were_not_packed():
    steps = [{"a": Mean(6.0, 2.0)}, {"a": Mean(1.0, 2.0), "b": Mean(5.0, 1.0)}, {"a": Mean(0.0, 1.0)}]
    packed = [Packed.of(metrics) for metrics in steps]
    assert merge([packed[0], packed[0], *packed]) == merge([steps[0], steps[0], *steps])
