"""A run and a training that need 2 GiB, in a process that may take 1.5 GiB more than it has."""

import json
import resource
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

import meshwright as mw
from engine.experiment.runs import EXAMPLES, experiment, measure
from meshwright.errors import OutOfMemoryError

WIDTH = 2**25


def loss(params, batch):
    """Return a loss for which each example needs a row that is long and cannot be fused away."""
    rows = jnp.sort(jnp.broadcast_to(batch["x"][:, :1], (len(batch["x"]), WIDTH)), axis=0)
    return measure(params, batch)["loss"].mean() + jax.lax.stop_gradient(rows).min() * 0


def trainer():
    deployer = mw.Deployer(seed=0, verbose=False)
    return mw.Trainer(deployer, loss=loss, params={"w": jnp.zeros((4, 2))}, optimizer=optax.sgd(0.1))


def told(act):
    try:
        act()
    except OutOfMemoryError as error:
        return str(error), error.exit_code
    return None


def main(run: str) -> None:
    """Print as JSON how both end."""
    kept = jnp.ones((300, 7))  # an array of the program that is none of the run's
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 3 * 2**29  # threads take addresses too, more on a busy machine
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    of_run = told(lambda: mw.run(experiment(run, loss=loss, optimizer=optax.adam(0.1))))
    of_trainer = told(lambda: trainer().fit(EXAMPLES, batch_size=16, max_steps=1))
    del kept
    print(json.dumps({"run": of_run, "trainer": of_trainer}))


if __name__ == "__main__":
    main(sys.argv[1])
