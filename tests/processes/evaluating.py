"""A run whose evaluation reads an example that cannot be read: `python evaluating.py WORKDIR FAILING...`.

FAILING are the numbers of the processes that cannot read it.
"""

import os
import sys

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"

import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


class Rows:
    """64 examples. The checks before the first step read none of 40 to 47, a batch of both processes."""

    def __init__(self, failing):
        self.fails = os.environ["JAX_PROCESS_ID"] in failing

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        if self.fails and 40 <= index < 48:
            raise ZeroDivisionError(f"example {index} cannot be read")
        return {"x": X[index]}


def error(params, batch):
    return {"error": ((batch["x"] @ params["w"] - 1) ** 2)}


def main(workdir, *failing):
    mw.parallel.start_processes()
    mw.run(
        mw.Experiment(
            workdir=workdir,
            model=lambda key: {"w": jnp.ones(4)},
            loss=lambda params, batch: error(params, batch)["error"].mean(),
            optimizer=optax.sgd(0.1),
            input=mw.Input({"x": X}, batch_size=16),
            evaluations={"rows": mw.Evaluation(error, Rows(failing), batch_size=8, when=3)},
            logging=mw.Logging(every=1),
            max_steps=4,
        )
    )


main(*sys.argv[1:])
