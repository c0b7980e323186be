"""A run with bad batches, which `mw.engine.Spikes` leaves out:
`meshwright train spikes.py:experiment fault=labels`.

What the run decided stands in `spikes.jsonl`, in `meshwright report RUN` and on its page.
"""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

BATCH, STEPS, WIDTH, EVERY = 8, 120, 4, 20
BAD_STEPS = (50, 91)
"""The steps whose batches are bad, as long as none is left out before."""
FAULTS = ("none", "labels", "scale", "nan")


def examples(fault: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * STEPS * 2, WIDTH)).astype(np.float32)
    y = x.sum(-1) + rng.normal(scale=0.3, size=len(x)).astype(np.float32)
    for step in BAD_STEPS if fault != "none" else ():
        rows = slice((step - 1) * BATCH, step * BATCH)
        if fault == "labels":
            y[rows] += 100
        else:
            x[rows] = 1e3 * x[rows] if fault == "scale" else np.nan
    return {"x": x, "y": y}


def init(key: jax.Array) -> dict[str, jax.Array]:
    return {"w": jax.random.normal(key, (WIDTH,))}


def loss(params, batch, key):
    kept = jax.random.bernoulli(key, 0.9, batch["x"].shape)
    return ((jnp.where(kept, batch["x"], 0) @ params["w"] - batch["y"]) ** 2).mean()


def dying(calls: int):
    """Return a tracker that kills its process by SIGKILL at a report."""
    left = [calls]

    def write(step: int, values) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return write


def experiment(
    workdir: str = "runs/spikes",
    fault: str = "labels",
    dies_at_report: int = 0,
    spikes: bool = True,
    every: int = 10,
) -> mw.Experiment:
    return mw.Experiment(
        workdir=workdir,
        model=init,
        loss=loss,
        optimizer=optax.adam(0.05),
        input=mw.Input(examples(fault), batch_size=BATCH, shuffle=False),
        max_steps=STEPS,
        save=mw.Save(when=EVERY),
        spikes=mw.engine.Spikes(at_least=20) if spikes else None,
        logging=mw.Logging(every=every, trackers=(dying(dies_at_report),) if dies_at_report else ()),
    )
