"""Weights in four and eight bits: their values, their size, and that they are read and split in parts."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._source import as_source
from meshwright.errors import UsageError
from meshwright.lm._tuning._quantised import (
    Quantised,
    dequantised,
    quantise,
    quantised_init,
    quantised_source,
)
from soak import cases

KINDS = ["int8", "nf4"]
# Dettmers et al., 2023, appendix E.
PAPER = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
PAPER += [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
PAPER += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941]
PAPER += [0.7229568362236023, 1.0]


values = jax.jit(dequantised)


def weights(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def test_the_sixteen_values_of_the_paper_are_exact():
    block = np.tile(np.float32(PAPER), 4)[None]
    np.testing.assert_array_equal(values(quantise(jnp.asarray(3 * block), "nf4")), np.float32(3) * block)


def test_each_weight_becomes_the_nearest_of_the_sixteen():
    w = weights((3, 128))
    scales = np.repeat(abs(w).reshape(3, 2, 64).max(-1), 64, axis=-1)
    nearest = np.float32(PAPER)[abs(w[..., None] / scales[..., None] - np.float32(PAPER)).argmin(-1)] * scales
    np.testing.assert_allclose(values(quantise(jnp.asarray(w), "nf4")), nearest, rtol=1e-6)


def test_int8_is_within_half_a_code_of_each_output():
    w = weights((40, 7))
    error = abs(values(quantise(jnp.asarray(w), "int8")) - w)
    assert (error <= abs(w).max(0) / 127 / 2 * 1.001).all()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind):
    assert not np.any(values(quantise(jnp.zeros((4, 70)), kind)))


def test_the_size_is_that_of_the_codes_and_few_scales():
    w = jax.ShapeDtypeStruct((256, 512), jnp.bfloat16)
    nbytes = {kind: tree.nbytes(jax.eval_shape(partial(quantise, kind=kind), w)) / w.size for kind in KINDS}
    assert nbytes == {"nf4": 0.5 + 2 / 64, "int8": 1 + 2 / 256}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_computed_where_it_is_used(kind):
    w, x = quantise(jnp.asarray(weights((5, 70))), kind), weights((2, 5), 1)
    whole = np.asarray(values(w))
    assert (w.shape, w.dtype) == ((5, 70), np.float32)
    found = jax.jit(lambda w: (x @ w, jnp.asarray(x) @ w, jnp.einsum("bi,io->bo", x, w), w.T, w[1:3]))(w)
    wanted = x @ whole, x @ whole, x @ whole, whole.T, whole[1:3]
    for each, value in zip(found, wanted, strict=True):
        np.testing.assert_allclose(each, value, rtol=1e-5, atol=1e-5)
    assert jax.eval_shape(dequantised, w.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.soak
@settings(max_examples=cases(8, 1000))
@given(data=st.data())
def test_any_part_of_a_source_is_that_of_the_whole(kind, data):
    shape = data.draw(st.sampled_from([(6, 70), (2, 5, 128), (3, 64), (1, 1)]))
    w = weights(shape)
    source = quantised_source(as_source({"w": w, "b": w[0]}, "weights"), "w", kind)
    arrays, whole = source.arrays(), quantise(jnp.asarray(w), kind)
    assert list(arrays) == ["w/codes", "w/scales", "b"]
    for part in ("codes", "scales"):
        wanted = np.asarray(getattr(whole, part))
        ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in wanted.shape]
        index = tuple(slice(*pair) for pair in ends)
        np.testing.assert_array_equal(arrays[f"w/{part}"].read(index), wanted[index])


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_split_as_the_rules_say_and_scales_where_they_divide(kind):
    init = quantised_init(lambda key: {"q": jax.random.normal(key, (16, 512))}, "q", kind)
    rules = mw.lm.lora("q").rules((mw.parallel.match("^params/q", "fsdp", "tensor"),))
    layout = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), rules)
    adapter = mw.lm.lora("q", rank=2)
    state = mw.training.init_state(adapter.init(init), adapter.optimizer(optax.sgd(1.0)), 0, layout)
    weight = state.params["base"]["q"]
    assert isinstance(weight, Quantised)
    assert weight.codes.sharding.spec == jax.sharding.PartitionSpec("fsdp", "tensor")
    split = jax.sharding.PartitionSpec(*("fsdp", "tensor") if kind == "nf4" else (None, "tensor"))
    assert weight.scales.sharding.spec == split
    assert state.params["adapter"]["q"]["lora_a"].sharding.is_fully_replicated


def test_under_fsdp_codes_are_gathered_and_not_values():
    mesh, w = mw.make_mesh("fsdp=8"), quantise(jnp.asarray(weights((64, 128))), "nf4")
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
    x, w = jax.device_put((np.ones((16, 64), np.float32), w), split)
    with jax.set_mesh(mesh):
        text = jax.jit(lambda x, w: x @ w).lower(x, w).compile().as_text()
    gathered = re.findall(r"= (\w+)\[[\d,]+\]\S* all-gather", text)
    assert sorted(gathered) == ["f32", "u8"]  # the scales and the codes
    assert "f32[64,2]" in text


def test_a_tree_is_computed_whole():
    tree_ = {"a": quantise(jnp.eye(4), "int8"), "b": jnp.ones(2)}
    np.testing.assert_array_equal(values(tree_)["a"], np.eye(4))


def test_what_cannot_be_quantised_is_named():
    with pytest.raises(UsageError, match="cannot be stored as 'int4'; expected one of int8, nf4"):
        quantise(jnp.ones((2, 2)), "int4")
    with pytest.raises(UsageError, match=r"b is float32\[3\], and cannot be quantised"):
        quantised_init(lambda key: {"b": jnp.zeros(3)}, "b", "nf4")(jax.random.key(0))
    with pytest.raises(UsageError, match="quantised: 'q' matches no name"):
        quantised_source(as_source({"w": np.ones((2, 2))}, "weights"), "q", "int8")
