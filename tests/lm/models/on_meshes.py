"""Models for any mesh axis, those here and users', and what one update makes of them on a mesh."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import meshwright as mw
from meshwright.lm._models import decoder, gpt2, t5

ROWS = {
    "tokens": np.random.default_rng(0).integers(1, 32, (32, 9)).astype(np.int32),
    "segments": np.sort(np.random.default_rng(1).integers(1, 4, (32, 9)).astype(np.int32), axis=1),
}
IMAGES = {
    "patches": np.random.default_rng(2).normal(size=(32, 8, 12)).astype(np.float32),
    "label": np.random.default_rng(3).integers(0, 10, 32).astype(np.int32),
}
PAIRS = {
    "inputs": ROWS["tokens"][:, :8],
    "targets": ROWS["tokens"][:, :8],
    "is_input": ROWS["segments"][:, :8] < 3,
}


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
        x = mw.nn.layers(lambda layer, x: nnx.merge(graph, layer)(x), stacked, self.embed(tokens))
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
        x = mw.nn.layers(lambda layer, x: x + jnp.tanh(jax.vmap(eqx.combine(layer, static))(x)), arrays, x)
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


def of_vit():
    """A user's ViT in plain JAX: patches of images, positions that are learned, the mean as a class."""

    def init(key):
        e, p, q, m, h = jax.random.split(key, 5)
        normal = lambda key, *shape: jax.random.normal(key, shape) / shape[-2] ** 0.5
        layers = {"qkv": normal(q, 4, 8, 24), "mlp": normal(m, 4, 8, 16)}
        return {
            "patch": normal(e, 12, 8),
            "position": normal(p, 8, 8),
            "layers": layers,
            "head": normal(h, 8, 10),
        }

    def block(w, x):
        q, k, v = jnp.split(normed(x) @ w["qkv"], 3, axis=-1)
        q, k, v = (each.reshape(*each.shape[:-1], 2, 4) for each in (q, k, v))
        x += mw.nn.attention(q, k, v, causal=False).reshape(x.shape)
        return x + jax.nn.gelu(normed(x) @ w["mlp"]) @ w["mlp"].T

    def normed(x):
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def loss(params, batch):
        x = batch["patches"] @ params["patch"] + params["position"]
        x = mw.nn.layers(block, params["layers"], x)
        logits = normed(x).mean(1) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

    return init, loss, IMAGES


SIZES = {"vocabulary": 32, "model": 8, "layers": 4, "heads": 2, "feed_forward": 16}
MODELS = {
    "decoder": lambda: of(decoder, ROWS, decoder.Config(**SIZES, windows=(3, None), tied=True)),
    "mixture": lambda: of(decoder, ROWS, decoder.Config(**SIZES, experts=4, experts_per_token=2)),
    "bounded mixture": lambda: of(decoder, ROWS, decoder.Config(**SIZES, experts=4, expert_capacity=1.0)),
    "gpt2": lambda: of(gpt2, ROWS, gpt2.Config(vocabulary=32, positions=16, model=8, layers=4, heads=2)),
    "t5": lambda: of(t5, PAIRS, t5.Config(vocabulary=32, model=8, layers=4, heads=2, feed_forward=16)),
    "nnx": lambda: of_library(OfNNX(nnx.Rngs(0)), is_per_row=False),
    "equinox": lambda: of_library(OfEquinox(jax.random.key(0)), is_per_row=True),
    "vit": of_vit,
}
MODULES = {"gpt2": gpt2, "t5": t5}
OF_USERS = ("nnx", "equinox", "vit")


def step_of(name, mesh, devices, without=(), **settings):
    init, loss, rows = MODELS[name]()
    rows = {key: array for key, array in rows.items() if key not in without}
    mesh = mw.make_mesh(mesh, jax.devices()[:devices])
    first, structs = jax.eval_shape(init, jax.random.key(0)), jax.eval_shape(lambda: rows)
    rules = (mw.infer_rules(first, loss, structs),) if name in OF_USERS else ()
    layout = mw.Layout(mesh, rules or MODULES.get(name, decoder).RULES)
    return mw.make_step(loss, optax.sgd(1.0), layout, microbatches=4, **settings), init, layout, rows


def updated(name, mesh, devices, **settings):
    step, init, layout, rows = step_of(name, mesh, devices, **settings)
    new, metrics = step(mw.training.init_state(init, optax.sgd(1.0), 0, layout), rows)
    return jax.device_get((new.params, metrics["loss"].value))


@functools.cache
def of_one_device(name, without=()):
    return updated(name, "data=1", 1, without=without)
