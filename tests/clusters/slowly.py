"""A run that takes some seconds, since its examples take time to read; and that ends with the same losses."""

import os
import time

import jax
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits

STEPS = 150


def experiment(workdir: str, max_steps: int = STEPS, batch_size: int = 64) -> mw.Experiment:
    train, _ = digits()
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (64, 10)) / 8},
        loss=_loss,
        optimizer=optax.adamw(3e-3),
        input=mw.Input(mw.data.mapped(_slowly, train), batch_size=batch_size, num_threads=1),
        max_steps=max_steps,
        mesh="data=-1",
        save=mw.Save(when=10),
        logging=mw.Logging(every=1),
    )


def _slowly(example):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return example


def _loss(params, batch):
    logits = batch["image"] @ params["w"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
