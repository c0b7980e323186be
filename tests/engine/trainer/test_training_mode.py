"""A loss that calls the model in evaluation mode in training: the run says so before its first step."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest
from flax import linen, nnx

import meshwright as mw

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


class OfNnx(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.out = nnx.BatchNorm(4, rngs=rngs), nnx.Linear(4, 1, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, train):
        x = self.norm(x, use_running_average=not train)
        return self.out(self.dropout(x, deterministic=not train))


class OfLinen(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(use_running_average=not train)(x)
        return linen.Dense(1)(linen.Dropout(0.5, deterministic=not train)(x))


class OfEquinox(eqx.Module):
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.out, self.dropout = eqx.nn.Linear(4, 1, key=key), eqx.nn.Dropout(0.5)

    def __call__(self, x, state, train, key):
        x, state = self.norm(x, state, inference=not train)
        return self.out(self.dropout(x, key=key, inference=not train)), state


MODELS = {"nnx": OfNnx, "linen": mw.functional(OfLinen(), X, train=False), "equinox": OfEquinox}


def warnings(folder, model, loss):
    deployer = mw.Deployer(0, verbose=False, workdir=folder)
    mw.Trainer(deployer, model=model, loss=loss, optimizer=optax.sgd(0.1)).fit(
        {"x": X}, batch_size=16, epochs=1
    )
    return [line for line in (folder / "log.txt").read_text().splitlines() if " ! " in line]


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.daily(1)
def test_dropout_and_batch_statistics_that_a_loss_leaves_out_are_told(library, tmp_path):
    found = warnings(
        tmp_path, MODELS[library], lambda model, batch: (model(batch["x"], train=False) ** 2).mean()
    )
    assert len(found) == 2
    assert "the model has dropout, but the loss draws no random numbers" in found[0]
    assert "training does not change the batch statistics: model_state/" in found[1]


@pytest.mark.parametrize("library", MODELS)
@pytest.mark.daily(1)
def test_a_model_in_training_mode_is_no_warning(library, tmp_path):
    assert not warnings(tmp_path, MODELS[library], lambda model, batch: (model(batch["x"]) ** 2).mean())


def test_dropout_of_an_experiment_is_told_too(tmp_path, caplog):
    class Plain(linen.Module):
        @linen.compact
        def __call__(self, x, train):
            return linen.Dense(1)(linen.Dropout(0.5, deterministic=not train)(x))

    net = mw.functional(Plain(), X, train=False)
    caplog.set_level("INFO", "meshwright")
    mw.run(
        mw.Experiment(
            workdir=str(tmp_path),
            model=net.init,
            loss=lambda params, batch, key: (net.apply(params, batch["x"], key=key) ** 2).mean(),
            optimizer=optax.sgd(0.1),
            input=mw.Input({"x": X}, batch_size=16),
            max_steps=1,
        )
    )
    assert sum("has dropout" in said for said in caplog.messages) == 1


@pytest.mark.parametrize(
    "model",
    [nnx.Dropout(0.0, rngs=nnx.Rngs(0)), mw.functional(linen.Dropout(0.0), X)],
    ids=["nnx", "linen"],
)
def test_a_dropout_layer_that_drops_nothing_is_none(model):
    assert not mw.functional(model).has_dropout
    assert not mw.functional(eqx.nn.Linear(4, 1, key=jax.random.key(0))).has_dropout
