"""A run with a profile, whose step has exchanges over several mesh axes: `python profiled.py DIRECTORY`."""

import sys
from pathlib import Path

import jax
import numpy as np
import optax

import meshwright as mw

SIZES = {"data": 2, "fsdp": 2, "tensor": 2}


def experiment(run, mesh):
    """Return the run on a mesh of these sizes."""

    def init(key):
        return {"a": jax.random.normal(key, (32, 64)), "b": jax.random.normal(key, (64, 32))}

    def loss(params, batch):
        with jax.named_scope("layer"):
            return ((jax.numpy.tanh(batch["x"] @ params["a"]) @ params["b"]) ** 2).mean()

    return mw.Experiment(
        workdir=str(run),
        model=init,
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input({"x": np.ones((16, 32), np.float32)}, batch_size=16),
        max_steps=8,
        mesh=",".join(f"{axis}={size}" for axis, size in mesh.items()),
        profile=mw.Profile((3,), num_steps=3),
    )


if __name__ == "__main__":
    mw.run(experiment(Path(sys.argv[1]), SIZES))
