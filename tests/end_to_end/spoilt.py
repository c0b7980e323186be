"""A run whose parameters become NaN at a step in the last shard alone, while its loss is finite."""

import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw


def examples(bad_step: int) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(48, 8)).astype(np.float32)
    x[8 * (bad_step - 1) : 8 * bad_step, -1] = 0  # the gradient of a root at 0
    return x


def loss(params, batch, key):
    return jnp.sqrt((batch["x"] * params["w"]) ** 2).sum(0).mean()


def experiment(workdir: str, bad_step: int = 4) -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jnp.ones(8)},
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input({"x": examples(bad_step)}, batch_size=8, shuffle=False),
        max_steps=6,
        mesh="fsdp=-1",
        rules=(mw.parallel.match("w", "fsdp"),),
        save=mw.Save(when=2),
        logging=mw.Logging(every=1),
    )
