"""A small linear model and a run of it, to be described otherwise test by test."""

import jax
import numpy as np
import optax

import meshwright as mw

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}


def init(key):
    return {"w": jax.random.normal(key, (4, 2))}


def measure(params, batch):
    return {"loss": ((batch["x"] @ params["w"]) ** 2).sum(-1)}


def loss(params, batch, key):
    return measure(params, batch)["loss"].mean()


def experiment(run, **more):
    described = {
        "model": init,
        "loss": loss,
        "optimizer": optax.sgd(0.01),
        "input": mw.Input(EXAMPLES, batch_size=16),
        "max_steps": 10,
        "save": mw.Save(when=4),
        "logging": mw.Logging(every=5),
    }
    return mw.Experiment(workdir=str(run), **described | more)


def losses(run):
    """Return what a run reported, by step."""
    reports = mw.observe.read_jsonl(run / "metrics.jsonl")
    return [(report["step"], report["loss"]) for report in reports if "loss" in report]
