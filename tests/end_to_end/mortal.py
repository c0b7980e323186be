"""A run with all parts open and randomness in each step, that ends itself or takes long when told to."""

import contextlib
import os
import signal
import sys
import time

import jax
import numpy as np
import optax

import meshwright as mw

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}


def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).sum(-1)}


def loss(params, batch, key):
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return measure(params, {"x": batch["x"] * kept})["loss"].mean()


@contextlib.contextmanager
def ends_at(last_step):
    def write(step, values):
        if step == last_step and "loss" in values:
            os.kill(os.getpid(), signal.SIGKILL)

    yield write


@contextlib.contextmanager
def sleeps_at(slow_step):
    def write(step, values):
        if step == slow_step and "loss" in values:
            print("sleeping", file=sys.stderr, flush=True)
            time.sleep(1000)

    yield write


def experiment(workdir: str, dies_at: int = 0, slow_at: int = 0, steps: int = 5) -> mw.Experiment:
    optimizer = optax.chain(mw.training.skip_exploding(optax.adam(0.01)), mw.training.keep_ema(0.9))
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (4, 2))},
        loss=loss,
        optimizer=optimizer,
        input=mw.Input(EXAMPLES, batch_size=12),
        max_steps=steps,
        mesh_rules=(("cpu.*", mw.parallel.override(microbatches=3)),),
        parameter_noise=((".*", 0.01),),
        evaluations={"all": mw.Evaluation(measure, EXAMPLES, when=2, batch_size=64)},
        save=mw.Save(when=2),
        logging=mw.Logging(every=1, trackers=(lambda: ends_at(dies_at), lambda: sleeps_at(slow_at))),
    )
