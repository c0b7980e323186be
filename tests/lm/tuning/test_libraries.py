"""Adapters of models of Flax and Equinox, which are given merged weights."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from flax import linen, nnx

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.lm._tuning._experiment import adapted

RNG = np.random.default_rng(0)
X = {"x": RNG.normal(size=(64, 4)).astype(np.float32)}
X["y"] = np.sin(X["x"].sum(-1))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(4, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.DenseGeneral((2, 4), name="hidden")(x)
        return linen.DenseGeneral(1, axis=(-2, -1), name="out")(linen.relu(x))


class Equinox(eqx.Module):
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.hidden, self.out = eqx.nn.Linear(4, 8, key=one), eqx.nn.Linear(8, 1, key=two)

    def __call__(self, x):
        return self.out(jax.nn.relu(self.hidden(x)))


LETTERS = [("hidden/kernel", "ioo"), ("out/kernel", "iio")]
CASES = {
    "nnx": (lambda: mw.functional(Nnx), "kernel", ()),
    "linen": (
        lambda: mw.functional(Linen(), X["x"]),
        "kernel",
        [("hidden/kernel", "ioo"), ("out/kernel", "iio")],
    ),
    "equinox": (lambda: mw.functional(Equinox), "weight", [("weight", "oi")]),
}


def experiment(name, workdir, **more):
    make, pattern, dims = CASES[name]
    net = make()

    def error(params, batch):
        apply = jax.vmap(net.apply, (None, 0)) if net.per_example else net.apply
        return {"loss": (apply(params, batch["x"]).reshape(-1) - batch["y"]) ** 2}

    whole = mw.Experiment(
        workdir=str(workdir),
        model=net,
        loss=lambda params, batch: error(params, batch)["loss"].mean(),
        input=mw.Input(X, batch_size=16),
        max_steps=100,
        evaluations={"test": mw.Evaluation(error, X, when=100)},
        **{"optimizer": optax.adam(3e-2)} | more,
    )
    return whole, adapted(whole, mw.lm.lora(pattern, rank=2, dims=dims, form="merged", dora=True))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.daily(1)
def test_a_model_of_a_library_begins_as_it_is_and_has_gradients_of_its_adapter_alone(name, tmp_path):
    whole, run = experiment(name, tmp_path)
    layout = mw.Layout(mw.make_mesh("data=-1"))
    target = mw.training.abstract_state(run.model, run.optimizer, layout)
    assert {key.rpartition("/")[2] for key in tree.leaf_names(target.params["adapter"])} == {
        "lora_a",
        "lora_b",
        "magnitude",
    }
    params = jax.jit(run.model)(jax.random.key(0))
    both = jax.jit(lambda params: (run.loss(params, X, jax.random.key(1)), whole.loss(params["base"], X)))
    np.testing.assert_allclose(*both(params), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_model_of_a_library_learns_by_its_adapter_and_its_averages_are_evaluated(name, tmp_path):
    optimizer = optax.chain(optax.adam(3e-2), mw.training.keep_ema(0.9))
    outcome = mw.run(experiment(name, tmp_path, optimizer=optimizer)[1])
    assert outcome.scores["test/loss"] < 0.4
