import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.training._keys import key_of, step_key

LAYOUT = mw.Layout(mw.make_mesh("fsdp=8"))
BATCH = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}


@pytest.fixture
def set_default():
    """Return a function that changes JAX's default implementation of keys, for the rest of the test."""
    before = jax.config.jax_default_prng_impl
    yield lambda impl: jax.config.update("jax_default_prng_impl", impl)
    jax.config.update("jax_default_prng_impl", before)


def init(key):
    return mw.training.Variables({"w": jax.random.normal(key, (8, 4))}, {"rng": jax.random.fold_in(key, 1)})


def loss(params, batch, key, model_state):
    """Dropout by the step's key, and noise by one that the model keeps."""
    rng, drawn = jax.random.split(model_state["rng"])
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    made = (batch["x"] * kept) @ params["w"] + jax.random.normal(drawn, (4,))
    return (made**2).mean(), {}, {"rng": rng}


def trained(state=None, *, steps):
    tx = optax.adam(0.1)
    state = mw.training.init_state(init, tx, 7, LAYOUT) if state is None else state
    step = mw.make_step(loss, tx, LAYOUT, microbatches=2)
    for _ in range(steps):
        state, _ = step(state, BATCH)
    return state


def bits(state):
    """The arrays of a state, keys as their data."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(state)]


@pytest.mark.slow
def test_a_run_goes_on_to_the_bit_under_another_default_of_jax(set_default):
    undisturbed = bits(trained(steps=3))
    begun = trained(steps=1)
    set_default("rbg")
    ended = trained(begun, steps=2)
    set_default("threefry2x32")
    assert all(map(np.array_equal, undisturbed, bits(ended)))


def test_a_state_has_one_type_and_one_value_whatever_the_default(set_default):
    tx = optax.adam(0.1)
    expected = mw.training.init_state(init, tx, 7, LAYOUT)
    set_default("rbg")
    target, made = mw.training.abstract_state(init, tx, LAYOUT), mw.training.init_state(init, tx, 7, LAYOUT)
    assert target.model_state["rng"].dtype == made.model_state["rng"].dtype == key_of(0).dtype
    np.testing.assert_array_equal(made.params["w"], expected.params["w"])


def test_a_step_s_key_is_a_function_of_seed_and_step():
    state = mw.TrainState(jnp.int32(4), {}, (), jnp.uint32(9))
    expected = jax.random.fold_in(jax.random.key(9, impl="threefry2x32"), 4)
    assert jnp.array_equal(jax.random.key_data(step_key(state)), jax.random.key_data(expected))
