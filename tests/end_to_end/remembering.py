"""A run of two processes with checkpoints in memory: in one directory, or in two, as if on two hosts."""

import os
import time
from pathlib import Path

import jax
import optax

import meshwright as mw
from meshwright.cli.demo.digits import digits

STEPS = 150


def experiment(workdir: str, memory: str, on_disk: int = 1000, hosts: int = 1) -> mw.Experiment:
    train, _ = digits()
    root = Path(memory, f"host-{int(os.environ.get('JAX_PROCESS_ID', '0')) % hosts}")
    root.mkdir(parents=True, exist_ok=True)
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (64, 10)) / 8, "b": jax.random.normal(key, (10,))},
        loss=_loss,
        optimizer=optax.adamw(3e-3),
        input=mw.Input(mw.data.mapped(_slowly, train), batch_size=64, num_threads=1),
        max_steps=STEPS,
        mesh="fsdp=-1",
        rules=[mw.parallel.match("w", "fsdp", None)],
        save=mw.Save(
            when=on_disk, memory=mw.checkpoints.InMemory(every=3, budget_nbytes=1 << 20, directory=str(root))
        ),
        logging=mw.Logging(every=1),
    )


def _slowly(example):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return example


def _loss(params, batch):
    logits = batch["image"] @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()
