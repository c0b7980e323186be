"""Models on the axis `pipeline`, those here and users', beside one device."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import meshwright as mw
from meshwright.models import decoder, gpt2, t5
from pairs import pairs

ROWS = {
    "tokens": np.random.default_rng(0).integers(1, 32, (16, 9)).astype(np.int32),
    "segments": np.sort(np.random.default_rng(1).integers(1, 4, (16, 9)).astype(np.int32), axis=1),
}
PAIRS = {"inputs": ROWS["tokens"], "targets": ROWS["tokens"], "is_input": ROWS["segments"] < 3}


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.dense = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)

    def __call__(self, x):
        return x + jax.nn.gelu(self.dense(self.norm(x)))


class OfNNX(nnx.Module):
    def __init__(self, rngs):
        self.embed, self.head = nnx.Embed(32, 8, rngs=rngs), nnx.Linear(8, 32, rngs=rngs)
        self.layers = nnx.vmap(Block)(rngs.split(4))

    def __call__(self, tokens):
        graph, stacked = nnx.split(self.layers)
        x = mw.layers(lambda layer, x: nnx.merge(graph, layer)(x), stacked, self.embed(tokens))
        return self.head(x)


class OfEquinox(eqx.Module):
    embed: eqx.nn.Embedding
    layers: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 6)
        self.embed, self.head = eqx.nn.Embedding(32, 8, key=keys[4]), eqx.nn.Linear(8, 32, key=keys[5])
        self.layers = eqx.filter_vmap(lambda key: eqx.nn.Linear(8, 8, key=key))(keys[:4])

    def __call__(self, tokens):  # of one row
        arrays, static = eqx.partition(self.layers, eqx.is_array)
        x = jax.vmap(self.embed)(tokens)
        x = mw.layers(lambda layer, x: x + jnp.tanh(jax.vmap(eqx.combine(layer, static))(x)), arrays, x)
        return jax.vmap(self.head)(x)


def of(model, rows, config, **more):
    return lambda key: model.init(config, key), lambda params, batch: model.loss(config, params, batch), rows


def of_library(model, is_per_row):
    model = mw.functional(model)

    def loss(params, batch):
        called = lambda tokens: model.apply(params, tokens)
        logits = (jax.vmap(called) if is_per_row else called)(batch["tokens"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"]).mean()

    return model.init, loss, ROWS


SIZES = {"vocabulary": 32, "model": 8, "layers": 4, "heads": 2, "feed_forward": 16}
MODELS = {
    "decoder": lambda: of(decoder, ROWS, decoder.Config(**SIZES, windows=(3, None), tied=True)),
    "gpt2": lambda: of(gpt2, ROWS, gpt2.Config(vocabulary=32, positions=16, model=8, layers=4, heads=2)),
    "t5": lambda: of(t5, PAIRS, t5.Config(vocabulary=32, model=8, layers=4, heads=2, feed_forward=16)),
    "nnx": lambda: of_library(OfNNX(nnx.Rngs(0)), is_per_row=False),
    "equinox": lambda: of_library(OfEquinox(jax.random.key(0)), is_per_row=True),
}


def step_of(name, mesh, devices, without=(), **settings):
    init, loss, rows = MODELS[name]()
    rows = {key: array for key, array in rows.items() if key not in without}
    mesh = mw.make_mesh(mesh, jax.devices()[:devices])
    first, structs = jax.eval_shape(init, jax.random.key(0)), jax.eval_shape(lambda: rows)
    rules = (mw.sharding.stages(), mw.auto(first, loss, structs)) if name in ("nnx", "equinox") else ()
    layout = mw.Layout(mesh, rules or getattr(mw.models, name).RULES)
    return mw.make_step(loss, optax.sgd(1.0), layout, microbatches=4, **settings), init, layout, rows


def updated(name, mesh, devices, **settings):
    step, init, layout, rows = step_of(name, mesh, devices, **settings)
    new, metrics = step(mw.train.init_state(init, optax.sgd(1.0), 0, layout), rows)
    return jax.device_get((new.params, metrics["loss"].value))


@functools.cache
def of_one_device(name, without=()):
    return updated(name, "data=1", 1, without=without)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh", "rounds"),
    pairs(
        [*MODELS],
        [("data=2,pipeline=4", 1), ("pipeline=2,fsdp=2,tensor=2", 2), ("pipeline=2,fsdp=2,tensor=2", 1)],
    ),
)
def test_losses_and_gradients_are_those_of_one_device(name, mesh, rounds):
    expected, loss = of_one_device(name)
    found, other = updated(name, mesh, 8, pipeline_rounds=rounds)
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "rounds", "is_packed"),
    pairs(
        [
            ("pipeline=2,sequence=4", 1),  # a ring: four devices do not share two heads
            ("pipeline=2,sequence=2,tensor=2", 2),
            ("pipeline=2,fsdp=2,sequence=2", 1),  # heads for positions
        ],
        [True, False],
    ),
)
def test_rows_of_the_decoder_are_split_in_each_stage(mesh, rounds, is_packed):
    without = () if is_packed else ("segments",)
    expected, loss = of_one_device("decoder", without)
    found, other = updated("decoder", mesh, 8, without=without, pipeline_rounds=rounds)
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", ["data=2,sequence=4", pytest.param("data=2,sequence=2,tensor=2", marks=pytest.mark.long)]
)
def test_rows_of_gpt2_are_split_without_stages(mesh):
    expected, loss = of_one_device("gpt2")
    found, other = updated("gpt2", mesh, 8)
    assert other == pytest.approx(loss, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6), found, expected)
