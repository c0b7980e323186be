"""The experiment of `faults_story.py`: its reading and its saves do what files in the folder FAULTS ask."""

import errno
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

BATCH_SIZE, STEP_SECONDS = 16, 0.04
BAD, AT = 1e3, 0.55
"""The factor of the examples of one bad batch, and the share of the steps after which it comes."""


def asked(what):
    """Return whether this process is asked for a fault; a file `what-NUMBER` asks for it."""
    return Path(os.environ["FAULTS"], f"{what}-{jax.process_index()}").exists()


class Rows:
    """Examples in order, each of which takes a while to read, and longer on a slow machine."""

    def __init__(self, num_steps: int):
        self._bad = int(num_steps * AT) * BATCH_SIZE
        self._length = num_steps * BATCH_SIZE

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        while asked("reading-hangs"):
            time.sleep(1)
        time.sleep(STEP_SECONDS / 4 * (1.5 if asked("slow") else 1))
        x = np.random.default_rng(i).normal(size=8).astype(np.float32)
        is_bad = self._bad <= i < self._bad + BATCH_SIZE
        return {"x": x, "y": x.sum(keepdims=True) * np.float32(BAD if is_bad else 1)}


def measure(params, batch):
    return {"loss": jnp.square(jnp.tanh(batch["x"] @ params["w"]) @ params["v"] - batch["y"]).mean(-1)}


def loss(params, batch):
    return measure(params, batch)["loss"].mean()


def keep(scores):
    if asked("disk-full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return mw.checkpoints.last(3)(scores)


def model(key):
    return {"w": jax.random.normal(key, (8, 64)) / 3, "v": jnp.zeros((64, 1))}


def experiment(workdir: str, max_steps: int) -> mw.Experiment:
    held = np.random.default_rng(10**6).normal(size=(64, 8)).astype(np.float32)
    evaluation = mw.Evaluation(
        measure, {"x": held, "y": held.sum(-1, keepdims=True)}, when=250, batch_size=64
    )
    return mw.Experiment(
        workdir=workdir,
        model=model,
        loss=loss,
        optimizer=optax.adamw(3e-3),
        input=mw.Input(Rows(max_steps), batch_size=BATCH_SIZE, shuffle=False, num_threads=1),
        max_steps=max_steps,
        evaluations={"held": evaluation},
        save=mw.Save(when=100, keep=keep),
        logging=mw.Logging(every=10, machine_seconds=1),
        watchdog=mw.Watchdog(learned="end", shortest_seconds=8),
        spikes=mw.engine.Spikes(deviations=50),
    )
