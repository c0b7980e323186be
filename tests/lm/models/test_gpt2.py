import functools

import jax
import numpy as np
import optax
import pytest

import meshwright as mw
from lm.models.random_params import params_of
from meshwright.lm._models import gpt2

CFG = gpt2.Config(vocabulary=14, positions=16, model=16, layers=2, heads=2, feed_forward=24)
TOKENS = np.random.default_rng(0).integers(0, 14, (8, 12))
logits = jax.jit(functools.partial(gpt2.logits, CFG))


@pytest.fixture(scope="module")
def params():
    return params_of(gpt2, CFG)


def test_no_position_sees_what_follows_it(params):
    changed = np.concatenate([TOKENS[:, :7], 13 - TOKENS[:, 7:]], axis=1)
    found, expected = logits(params, changed), logits(params, TOKENS)
    np.testing.assert_array_equal(found[:, :7], expected[:, :7])
    assert (np.abs(found[:, 7:] - expected[:, 7:]).max((1, 2)) > 1e-3).all()


def test_split_over_a_mesh_it_computes_the_same(params, mesh):
    layout = mw.Layout(mesh, gpt2.RULES)
    placed = jax.device_put(params, layout.shardings(params))
    assert placed["layers"]["up_bias"].sharding.spec == jax.P(None, "tensor")
    with jax.set_mesh(mesh):
        found = jax.jit(functools.partial(gpt2.logits, CFG))(placed, TOKENS)
    np.testing.assert_allclose(found, logits(params, TOKENS), rtol=1e-4, atol=1e-4)


def test_the_loss_is_the_cross_entropy_of_each_token_but_the_first(params):
    is_token = np.arange(12) < np.full((8, 1), 9)
    found = gpt2.loss(CFG, params, {"tokens": TOKENS, "is_token": is_token})
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, TOKENS)[:, :-1], TOKENS[:, 1:])
    assert (found.count, float(found)) == (64, pytest.approx(float(losses[:, :8].mean()), rel=1e-5))
    weights = np.random.default_rng(1).uniform(0, 2, (8, 12)).astype(np.float32)
    found = gpt2.loss(CFG, params, {"tokens": TOKENS, "is_token": is_token, "weights": weights})
    expected = np.average(losses, weights=(weights * is_token)[:, 1:])
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_packed_texts_have_the_losses_that_each_has_alone(params):
    lengths = 5, 4
    packed = {
        "tokens": TOKENS[:1],
        "segments": np.array([[1] * 5 + [2] * 4 + [0] * 3]),
        "positions": np.array([[*range(5), *range(4), 0, 0, 0]]),
    }
    alone = [
        gpt2.loss(CFG, params, {"tokens": TOKENS[:1, :5]}),
        gpt2.loss(CFG, params, {"tokens": TOKENS[:1, 5:9]}),
    ]
    found = gpt2.loss(CFG, params, packed)
    expected = sum(float(loss) * (length - 1) for loss, length in zip(alone, lengths, strict=True)) / 7
    assert (found.count, float(found)) == (7, pytest.approx(expected, rel=1e-5))
    losses = gpt2.losses(CFG, params, packed["tokens"], packed["segments"])
    means = mw.engine.token_means(losses, packed["tokens"], packed["segments"])
    assert float(means["loss"].value[0]) == pytest.approx(expected, rel=1e-5)
    del packed["positions"]
    assert float(gpt2.loss(CFG, params, packed)) == pytest.approx(float(found), rel=1e-6)


def test_the_smallest_has_as_many_parameters_as_published():
    found = jax.eval_shape(functools.partial(gpt2.init, gpt2.Config()), jax.random.key(0))
    assert mw.training.num_params(found) == 124_439_808


def test_what_is_too_long_or_does_not_divide_is_refused(params):
    with pytest.raises(mw.errors.UsageError, match="17 tokens are too long"):
        gpt2.logits(CFG, params, np.zeros((1, 17), int))
    with pytest.raises(mw.errors.UsageError, match=r"Config.heads is 5"):
        gpt2.Config(heads=5)
    with pytest.raises(mw.errors.UsageError, match=r"Config.heads is 0"):
        gpt2.Config(heads=0)
