"""A network whose activations are far larger than its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

LAYERS, WIDTH = 100, 512


class Ones:
    """As many examples as are asked for."""

    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return {"x": np.ones(WIDTH, np.float32)}

    def __getitems__(self, ids):
        return {"x": np.broadcast_to(np.float32(1), (len(ids), WIDTH))}


def init(key):
    return {"w": jnp.ones((LAYERS, WIDTH, WIDTH))}


def loss(params, batch, key):
    def one(x, w):
        return mw.parallel.shard_batch_dim(jax.nn.gelu(x @ w)), None

    return jax.lax.scan(one, batch["x"], params["w"])[0].mean()


def experiment(batch_size: int = 1024) -> mw.Experiment:
    return mw.Experiment(
        workdir="never/made",
        model=init,
        loss=loss,
        optimizer=optax.adam(1e-3),
        input=mw.Input(Ones(batch_size), batch_size),
        max_steps=1,
    )
