"""Runs that start from the averages of another's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import CheckpointError

LAYOUT = mw.Layout(mw.make_mesh("data=2,fsdp=4"))
EMA = optax.chain(optax.adam(0.1), mw.training.keep_ema(0.9))


def init(key):
    return {"ema": {"mass": jax.random.normal(key, (8, 4)), "bias": jnp.ones(4, jnp.bfloat16)}}


def trained(tx, steps=2):
    """The state after some updates, in which averages and parameters differ."""
    step = mw.make_step(lambda params, batch, key: sum(map(jnp.sum, jax.tree.leaves(params))), tx, LAYOUT)
    state = mw.training.init_state(init, tx, 0, LAYOUT)
    for _ in range(steps):
        state, _ = step(state, {"x": np.zeros((8, 1), np.float32)})
    return state


def saved(state, directory):
    with mw.Checkpoints(directory) as checkpoints:
        checkpoints.save(2, state)
    return str(directory)


def begun(builder, tx):
    return mw.training.state_around(
        builder(mw.training.abstract_state(init, tx, LAYOUT)), init, tx, 1, LAYOUT
    )


def from_averages(path, **more):
    return mw.engine.from_checkpoint(path, open_with=mw.engine.open_averages, **more)


@pytest.fixture(scope="module")
def ema(tmp_path_factory):
    state = trained(EMA)
    return saved(state, tmp_path_factory.mktemp("ema")), mw.training.ema_params(state)


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, expected)


def test_averages_become_parameters_in_their_dtypes(ema):
    path, averages = ema
    assert_equal(begun(from_averages(path), optax.sgd(0.1)).params, averages)


def test_averages_that_the_target_keeps_begin_as_the_parameters(ema):
    path, averages = ema
    state = begun(from_averages(path), EMA)
    assert_equal(mw.training.ema_params(state), averages)
    assert (int(state.step), int(state.opt_state[1].count)) == (0, 0)


def test_averages_may_be_taken_with_all_else_that_is_saved(ema):
    path, averages = ema
    state = begun(from_averages(path, only=".*"), EMA)
    assert_equal(state.params, averages)
    assert_equal(mw.training.ema_params(state), averages)
    assert (int(state.step), int(state.opt_state[1].count)) == (2, 2)


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(optax.chain(optax.clip(1.0), optax.adam(0.1)), optax.chain(mw.training.keep_ema(0.9))),
        mw.training.by_path([("bias", EMA), (".*", EMA)]),
        mw.training.Trainable("mass", EMA),
    ],
    ids=["nested", "by path", "of some"],
)
@pytest.mark.daily(1)
def test_averages_are_found_wherever_they_are(tx, tmp_path):
    state = trained(tx)
    path = saved(state, tmp_path)
    assert_equal(begun(from_averages(path), optax.sgd(0.1)).params, mw.training.ema_params(state))


def test_a_run_that_kept_no_averages_is_an_error(tmp_path):
    path = saved(mw.training.init_state(init, optax.adam(0.1), 0, LAYOUT), tmp_path)
    with pytest.raises(CheckpointError, match=r"step_00000002 has no averages .*(?s:.*)keep_ema"):
        begun(from_averages(path), EMA)
