import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("w", "fsdp", "tensor"),))
BATCH = {"x": np.ones((16, 8), np.float32)}
PARAMS = {"w": np.full((64, 32), 3, np.float32), "b": np.ones(4, np.float32), "count": np.arange(4)}
KEY = jax.random.key(0)


def given(loss_under, params=PARAMS, key=KEY):
    """What a loss is given: parameters and key."""
    return loss_under(lambda params, batch, key: (params, key))(params, BATCH, key)


def test_noise_has_the_deviation_asked_for_where_a_pattern_matches_first():
    params, _ = given(
        lambda loss: mw.training.with_parameter_noise(
            loss, [("w", 0.5), (".*", mw.training._internal.relative_std(1e-3))]
        )
    )
    noise = np.asarray(params["w"] - PARAMS["w"])
    np.testing.assert_allclose((noise.mean(), noise.std()), (0, 0.5), atol=0.02)
    assert 0 < np.abs(params["b"] - 1).max() < 1e-2
    np.testing.assert_array_equal(params["count"], PARAMS["count"])


def test_relative_noise_is_a_share_of_the_root_mean_square():
    params, _ = given(
        lambda loss: mw.training.with_parameter_noise(loss, [("w", mw.training._internal.relative_std(0.1))])
    )
    np.testing.assert_allclose(np.std(params["w"] - PARAMS["w"]), 0.3, rtol=0.05)
    np.testing.assert_array_equal(params["b"], PARAMS["b"])


def test_the_loss_draws_what_it_would_draw_without_noise():
    _, key = given(lambda loss: mw.training.with_parameter_noise(loss, [("w", 0.1)]))
    assert key == KEY


def test_parameters_alike_are_noised_apart():
    params, _ = given(
        lambda loss: mw.training.with_parameter_noise(loss, [(".*", 0.1)]),
        {"v": PARAMS["w"], "w": PARAMS["w"]},
    )
    assert not np.allclose(params["v"], params["w"])


def test_noise_on_one_parameter_is_the_same_whatever_others_there_are():
    under = lambda loss: mw.training.with_parameter_noise(loss, [(".*", 0.1)])
    alone, _ = given(under, {"w": PARAMS["w"]})
    np.testing.assert_array_equal(alone["w"], given(under)[0]["w"])
    assert not np.array_equal(alone["w"], given(under, key=jax.random.key(1))[0]["w"])


def loss(params, batch, key):
    assert params["w"].dtype == jnp.bfloat16
    return (params["w"].astype(jnp.float32).sum() / 64 - 90) ** 2 * batch["x"].mean()


def test_training_sees_noise_after_the_cast_and_an_evaluation_none():
    params = {"w": PARAMS["w"]}
    states = {}
    for name, trained in {
        "plain": loss,
        "with_parameter_noise": mw.training.with_parameter_noise(loss, [("w", 0.5)]),
    }.items():
        step = mw.make_step(trained, optax.sgd(1.0), LAYOUT, microbatches=2, compute_dtype="bfloat16")
        states[name], _ = step(mw.training.state_from(params, optax.sgd(1.0), 0, LAYOUT), BATCH)
    assert not np.allclose(states["plain"].params["w"], states["with_parameter_noise"].params["w"])
    data = lambda: mw.data.padded_batches(BATCH, 16, LAYOUT.batch_sharding)
    measure = lambda params, batch: {"w": jnp.broadcast_to(jnp.ptp(params["w"]), 16)}
    # The gradient is the same for every element: what is evaluated shows no trace of noise.
    assert (
        mw.engine.Evaluator(measure, data, LAYOUT, mw.engine.never)(
            mw.engine.Tick(1, last=True), states["with_parameter_noise"]
        )["w"]
        == 0
    )


def test_a_pattern_that_cannot_be_read_is_told():
    with pytest.raises(UsageError, match="not a regular expression"):
        mw.training.with_parameter_noise(loss, [("(", 1.0)])
