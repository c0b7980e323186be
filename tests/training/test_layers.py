"""Policies of remat for the layers of a loss."""

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError
from meshwright.lm._models import decoder, gpt2
from meshwright.training._remat import remat

POLICIES = ("everything", "nothing", "dots", "dots_no_batch")
KEY = mw.training.key_of(0)


def kept(loss, params, *arguments):
    """Bytes that the gradient of a loss keeps."""
    return sum(x.nbytes for x in jax.tree.leaves(jax.vjp(lambda p: loss(p, *arguments), params)[1]))


def scanned(params, x):
    """A loss that knows nothing of remat: four layers of two products."""
    one = lambda x, w: (jnp.sin(jnp.sin(x @ w["a"]) @ w["b"]), None)
    return (jax.lax.scan(one, x, params["layers"])[0] @ params["head"]).sum()


def unrolled(params, x):
    """The same without a scan; each layer keeps what it computes, as it says itself."""
    layer = jax.checkpoint(
        lambda x, w: jnp.sin(jnp.sin(x @ w["a"]) @ w["b"]),
        policy=mw.training._internal.remat_policy("everything"),
    )
    for i in range(4):
        x = layer(x, jax.tree.map(lambda w, i=i: w[i], params["layers"]))
    return (x @ params["head"]).sum()


RANDOM = np.random.default_rng(0)
LAYERS = {name: RANDOM.normal(size=(4, 8, 8)).astype("f4") for name in "ab"}
PARAMS = {"layers": LAYERS, "head": RANDOM.normal(size=(8, 1)).astype("f4")}
X = RANDOM.normal(size=(16, 8)).astype("f4")


@pytest.mark.parametrize("loss", [scanned, unrolled])
def test_layers_of_any_model_keep_what_they_are_told(loss):
    sizes = [kept(remat(loss, f"layers:{policy}"), PARAMS, X) for policy in POLICIES]
    everything, nothing, dots, _ = sizes
    assert nothing < dots < everything


@pytest.mark.parametrize("loss", [scanned, unrolled])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.daily(3)
def test_no_policy_of_layers_changes_the_gradient(loss, policy):
    with_policy = jax.jit(jax.grad(remat(loss, f"layers:{policy}")))(PARAMS, X)
    plain = jax.jit(jax.grad(loss))(PARAMS, X)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), with_policy, plain)


CFG = decoder.Config(vocabulary=32, model=16, layers=3, heads=2, feed_forward=32)
TOKENS = {"tokens": RANDOM.integers(0, 32, (2, 17))}


@pytest.mark.slow
@pytest.mark.parametrize(("own", "policy"), [("nothing", "dots"), ("everything", "nothing")])
def test_the_policy_of_a_model_is_replaced(own, policy):
    params = decoder.init(CFG, KEY)
    loss = lambda own: lambda params: decoder.loss(CFG, params, TOKENS, remat=own).total
    found = kept(remat(loss(own), f"layers:{policy}"), params)
    assert found == pytest.approx(kept(loss(policy), params), abs=8)  # a scalar more or less


@pytest.mark.slow
def test_stacks_of_other_models_are_found():
    small = gpt2.Config(vocabulary=32, positions=32, model=16, layers=3, heads=2)
    params = gpt2.init(small, KEY)
    loss = lambda params: gpt2.loss(small, params, TOKENS).total
    assert kept(remat(loss, "layers:nothing"), params) < kept(loss, params) / 2


def test_modules_of_flax_that_scan_are_found():
    class Layer(linen.Module):
        @linen.compact
        def __call__(self, x, _):
            return jnp.sin(linen.Dense(8)(jnp.sin(linen.Dense(8)(x)))), None

    stack = linen.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)()
    params = stack.init(KEY, X, None)
    loss = lambda params: stack.apply(params, X, None)[0].sum()
    assert kept(remat(loss, "layers:nothing"), params) < kept(loss, params)


def test_loops_over_time_are_not_layers():
    over_time = lambda params, x: jax.lax.scan(lambda h, x: (jnp.sin(h @ params + x), None), x[0], x)[0].sum()
    with pytest.raises(UsageError, match="has no layers") as error:
        remat(over_time, "layers:dots")(LAYERS["a"][0], X)
    assert "layers:dots" in str(error.value)


def test_a_model_is_not_given_the_policy_of_its_loss():
    with pytest.raises(UsageError, match="without 'layers:'"):
        mw.training._internal.remat_policy("layers:dots")


@pytest.mark.slow
def test_an_experiment_trains_with_a_policy_of_layers_to_the_same_parameters(tmp_path):
    def trained(name, policy):
        made = mw.run(
            mw.Experiment(
                workdir=str(tmp_path / name),
                mesh="fsdp=4,tensor=2",
                model=functools.partial(decoder.init, CFG),
                loss=lambda params, batch: decoder.loss(CFG, params, batch, remat="nothing"),
                optimizer=optax.sgd(0.1),
                input=mw.Input({"tokens": np.tile(TOKENS["tokens"], (4, 1))}, batch_size=8),
                max_steps=2,
                remat=policy,
            )
        )
        return made.state.params

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        trained("plain", None),
        trained("layers", "layers:dots"),
    )
