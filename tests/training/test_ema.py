import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("w", "fsdp", "tensor"),))
BATCH = {"x": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}


def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.ones(4)}


def loss(params, batch, key):
    return ((batch["x"] @ params["w"] + params["b"]) ** 2).mean()


def averaged(tx, params, values):
    """The average after each of `values`, which the parameters take one after the other."""
    state = tx.init(params)
    for value in values:
        _, state = tx.update({"w": value - params["w"]}, state, params)
        params = {"w": value}
    return mw.training.ema_params(mw.TrainState(jnp.int32(0), params, state, jnp.uint32(0)))["w"]


@given(st.floats(0, 0.999), st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=8), st.booleans())
def test_the_average_is_the_closed_form(decay, values, corrected):
    weights = [(1 - decay) * decay ** (len(values) - 1 - i) for i in range(len(values))]
    expected = np.dot(weights, values)
    expected = expected / sum(weights) if corrected else expected + decay ** len(values) * 5
    found = averaged(
        mw.training.keep_ema(decay, bias_correction=corrected), {"w": jnp.float32(5)}, np.float32(values)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("corrected", [True, False])
def test_before_the_first_update_it_is_the_parameters(corrected):
    tx = optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.9, bias_correction=corrected))
    state = mw.training.init_state(init, tx, 0, LAYOUT)
    jax.tree.map(np.testing.assert_array_equal, mw.training.ema_params(state), state.params)


def test_a_schedule_of_decays_counts_updates_from_zero():
    tx = mw.training.keep_ema(lambda count: jnp.where(count == 2, 0.0, 0.9))
    assert averaged(tx, {"w": jnp.float32(5)}, np.float32([1, 2, 3])) == 3


def test_narrow_parameters_are_averaged_in_float32_and_returned_as_they_are():
    tx = mw.training.keep_ema(0.999)
    assert tx.init({"w": jnp.ones(3, jnp.bfloat16)}).ema["w"].dtype == jnp.float32
    assert averaged(tx, {"w": jnp.bfloat16(1)}, [jnp.bfloat16(2)]).dtype == jnp.bfloat16


def trained(tx, microbatches=2, steps=3):
    state = mw.training.state_from(init(jax.random.key(0)), tx, 0, LAYOUT)
    step, seen = mw.make_step(loss, tx, LAYOUT, microbatches=microbatches), []
    for _ in range(steps):
        state, _ = step(state, BATCH)
        seen.append(jax.device_get(state.params))
    return state, seen


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_run_is_averaged_beside_its_parameters_and_trains_as_without(microbatches):
    state, seen = trained(optax.chain(optax.adam(0.1), mw.training.keep_ema(0.5)), microbatches)
    expected = jax.tree.map(lambda a, b, c: (a + 2 * b + 4 * c) / 7, *seen)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), mw.training.ema_params(state), expected
    )
    assert state.opt_state[1].ema["w"].sharding.spec == P("fsdp", "tensor")
    alone, _ = trained(optax.adam(0.1), 1)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), state.params, alone.params)


def test_frozen_parameters_are_their_own_average():
    tx = mw.training.Trainable(
        "w", mw.training.by_path([("w", optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.5)))])
    )
    state, seen = trained(tx)
    assert mw.parallel.leaf_names(state.opt_state.inner_states["0"].inner_state[1].ema) == ["w"]
    np.testing.assert_array_equal(mw.training.ema_params(state)["b"], np.ones(4))
    assert not np.allclose(mw.training.ema_params(state)["w"], seen[-1]["w"])


def test_an_evaluation_measures_the_average_and_the_raw_parameters_if_told():
    state, seen = trained(optax.chain(optax.sgd(0.1), mw.training.keep_ema(0.5)), steps=2)
    data = lambda: mw.data.padded_batches(BATCH, 8, LAYOUT.batch_sharding)
    measure = lambda params, batch: {"b": jnp.broadcast_to(params["b"][0], 8)}
    evaluate = mw.engine.Evaluator(measure, data, LAYOUT, mw.engine.never)
    evaluate.check(mw.base._internal.abstract(state), jax.tree.map(lambda x: x[:8], BATCH))
    found = evaluate(mw.engine.Tick(2, last=True), state)["b"]
    np.testing.assert_allclose(found, (seen[0]["b"][0] + 2 * seen[1]["b"][0]) / 3, rtol=1e-5)
    raw = mw.engine.Evaluator(measure, data, LAYOUT, mw.engine.never, params=lambda state: state.params)
    assert raw(mw.engine.Tick(2, last=True), state)["b"] == seen[1]["b"][0]


def test_the_parameters_themselves_are_evaluated_where_there_is_no_average():
    without = mw.training.init_state(init, optax.adam(0.1), 0, LAYOUT)
    assert mw.training.eval_params(without) is without.params
    own = types.SimpleNamespace(params={"w": 1.0})  # a user's state, without an optimizer's
    assert mw.training.eval_params(own) is own.params


def test_the_average_is_found_within_other_optimizers():
    state, _ = trained(mw.training.skip_exploding(optax.chain(optax.adam(0.1), mw.training.keep_ema(0.5))))
    jax.tree.map(np.testing.assert_array_equal, mw.training.eval_params(state), mw.training.ema_params(state))


def test_an_optimizer_without_an_average_is_told():
    with pytest.raises(UsageError, match="keeps no average"):
        mw.training.ema_params(mw.training.init_state(init, optax.sgd(0.1), 0, LAYOUT))


@pytest.mark.parametrize("decay", [1.0, -0.1, 99])
def test_a_decay_that_is_none_is_told(decay):
    with pytest.raises(UsageError, match=r"must be in \[0, 1\)"):
        mw.training.keep_ema(decay)
