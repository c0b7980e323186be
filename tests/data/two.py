"""A program of two processes that train on the same data in several ways: it says what it saw."""

import json
import os
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"

import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw
from meshwright.errors import MeshwrightError
from meshwright.processes import _internal as processes

where, me = Path(sys.argv[1]), int(os.environ["JAX_PROCESS_ID"])
processes.start_processes()
LENGTHS = [1 + i % 8 for i in range(40)]
TEXTS = [{"x": np.full(n, 1 + i, np.float32), "id": np.int32(i)} for i, n in enumerate(LENGTHS)]
said = {}


def loss(params, batch):
    return (params["w"] * batch["x"]).mean(), {"ids": (batch["id"] * (1 + jnp.arange(8))).sum()}


def trained(name, examples, **more):
    """Train on a mesh of both, and keep the parameters and what of each batch was reported."""
    deployer = mw.Deployer(0, verbose=False, workdir=where / name)
    made = mw.Trainer(deployer, params={"w": jnp.float32(1)}, loss=loss, optimizer=optax.sgd(1e-3))
    options = {"batch_size": 8, "epochs": 2, "logging": mw.Logging(every=1), "save": mw.Save(when=3)} | more
    try:
        made.fit(examples, **options)
    except MeshwrightError as error:
        said[name] = f"{type(error).__name__}: {error}"
        return
    said[name] = float(made.params["w"])


def batches(of, size=8):
    fixed = [
        {"x": np.full((8, 2), 1 + i, np.float32), "id": np.arange(8, dtype=np.int32) + i} for i in range(5)
    ]
    return [{key: x[of][:size] for key, x in batch.items()} for batch in fixed]


def noisy(example, rng):
    return {"x": np.full(2, rng.random(), np.float32), "id": example["id"]}


ROWS, MINE = slice(0, 8), slice(4 * me, 4 * me + 4)
bucketed = mw.data.Bucketed(TEXTS, LENGTHS, (2, 4, 8), {"x": 0})
for max_steps in (4, 10):
    trained("bucketed", bucketed, max_steps=max_steps)
trained("mapped", mw.data.mapped(noisy, TEXTS))
trained("all", mw.data.Batched(batches(ROWS)))
for max_steps in (4, 10):
    trained("local", mw.data.Batched(batches(MINE), rows="local"), max_steps=max_steps)
trained("apart", mw.data.Batched(batches(MINE)[: 5 - me], rows="local"))
wider = {"x": np.ones((8, 3), np.float32), "id": np.arange(8, dtype=np.int32)}
trained("undeclared", mw.data.Batched([*batches(ROWS), wider]))
trained("declared", mw.data.Batched([*batches(ROWS), wider], shapes=[wider]))
(where / f"{me}.json").write_text(json.dumps(said))
