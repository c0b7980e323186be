"""Experiments that take long where they may be told to stop: in an evaluation, and in XLA's compiler."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

EXAMPLES = {"x": np.ones((64, 4), np.float32)}
BATCHES = 120
"""Of an evaluation, each of as many seconds as the environment says."""


def evaluating(workdir: str = "runs/slow") -> mw.Experiment:
    """Evaluate after step 2, in 120 batches that may take long."""
    few = {"x": np.ones((8 * BATCHES, 4), np.float32)}
    evaluations = {"all": mw.Evaluation(_slowly, few, when=mw.engine.at(2), batch_size=8, at_end=False)}
    loss = lambda params, batch, key: _error(params, batch).mean()
    return _described(workdir, loss, evaluations=evaluations)


def compiling(workdir: str = "runs/slow", reductions: int = 500) -> mw.Experiment:
    """Train a step that takes XLA a minute to compile: a sum of many reductions, which it fuses into one."""

    def loss(params, batch, key):
        parts = (jnp.sum(params["w"][i % 4, : 1 + i % 2] * batch["x"][0, i % 4]) for i in range(reductions))
        return sum(parts) ** 2

    return _described(workdir, loss)


def _described(workdir, loss, **more):
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (4, 2))},
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input(EXAMPLES, batch_size=16),
        max_steps=4,
        logging=mw.Logging(every=1),
        save=mw.Save(when=100),
        **more,
    )


def _error(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).sum(-1)


def _slowly(params, batch):
    waited = jax.experimental.io_callback(_wait, jax.ShapeDtypeStruct((), jnp.float32))
    return {"loss": _error(params, batch) + 0 * waited}


def _wait():
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return np.float32(0)
