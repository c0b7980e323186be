"""A small model of all that a pipeline takes, and what one update makes of it on a mesh."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

LAYERS, WIDTH = 8, 4
RULES = (
    mw.parallel.match("layers/w", "pipeline", None, "tensor"),
    mw.parallel.stages(),
    mw.parallel.match(".*"),
)


def init(key):
    weights = jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / 2
    return {
        "table": jax.random.normal(key, (16, WIDTH)),
        "layers": {"w": weights, "b": jnp.ones((LAYERS, 1))},
    }


def loss(params, batch, key):
    """Return a loss with dropout, a mask that the block refers to, and a sum over layers besides."""
    mask = batch["mask"][..., None]

    def block(layer, x):
        weights, key = layer
        x = x + mask * jnp.tanh(x @ weights["w"] + weights["b"])
        return x * jax.random.bernoulli(key, 0.8, x.shape), jnp.mean(x**2)

    x = params["table"][batch["tokens"]]
    keys = jax.random.split(key, LAYERS)
    x, sizes = mw.nn.layers(block, (params["layers"], keys), x, has_aux=True)
    losses = (x @ params["table"].T - batch["mask"][..., None]) ** 2
    return mw.Mean.of(losses.mean(-1) + sizes.mean(), batch["mask"]), {"first": sizes[0], "last": sizes[-1]}


def batch_of(size):
    rng = np.random.default_rng(0)
    mask = rng.integers(0, 2, (size, 3)).astype(np.float32)
    return {"tokens": rng.integers(0, 16, (size, 3)).astype(np.int32), "mask": mask}


def layout_of(text):
    sizes = dict(part.split("=") for part in text.split(","))
    sizes = {axis: int(size) for axis, size in sizes.items()}
    return mw.Layout(mw.make_mesh(sizes, jax.devices()[: math.prod(sizes.values())]), RULES)


def step_of(mesh, loss=loss, **settings):
    layout, optimizer = layout_of(mesh), optax.sgd(1.0)
    state = mw.training.init_state(init, optimizer, 0, layout)
    return mw.make_step(loss, optimizer, layout, **settings), state


def updated(mesh, batch, **settings):
    step, state = step_of(mesh, **settings)
    state, metrics = step(state, batch)
    return jax.device_get(state.params), {name: float(value) for name, value in metrics.items()}
