"""A run whose loader brings a batch of another shape in the middle."""

import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw


def loss(params, batch):
    return ((batch["x"] * params["w"]) ** 2).mean()


def experiment(workdir: str = "runs/recompiles") -> mw.Experiment:
    batches = [{"x": np.ones((8, 6 if step == 5 else 4), np.float32)} for step in range(8)]
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jnp.ones(())},
        loss=loss,
        optimizer=optax.sgd(0.1),
        input=mw.Input(mw.data.Batched(batches), batch_size=8),
        max_steps=8,
    )
