import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.demo import transformer

CFG = transformer.Config(vocabulary=11, model=16, heads=2, feed_forward=24, layers=2)
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 7))
logits = jax.jit(functools.partial(transformer.logits, CFG))


@pytest.fixture(scope="module")
def params():
    return jax.jit(functools.partial(transformer.init, CFG))(jax.random.key(0))


def test_narrow_parameters_give_wide_logits_close_to_those_of_wide_ones(params):
    found = logits(jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), TOKENS)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, logits(params, TOKENS), atol=0.1)


def test_no_position_sees_what_follows_it(params):
    changed = np.concatenate([TOKENS[:, :4], 10 - TOKENS[:, 4:]], axis=1)
    found, expected = logits(params, changed), logits(params, TOKENS)
    np.testing.assert_array_equal(found[:, :4], expected[:, :4])
    assert (np.abs(found[:, 4:] - expected[:, 4:]).max(-1) > 1e-3).all()
