"""Rounds on any number of processes: data are made by the state, and one process may die in the middle.

    python playing.py WORKDIR RESULT DIES_IN_ROUND

Process 0 writes what came of it to the file RESULT; the second process is killed half way through that round.
"""

import json
import os
import signal
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def loss(params, batch):
    return ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean()


def play(workdir, dies_in):
    deployer = mw.Deployer(seed=0, mesh="data=-1", workdir=workdir, verbose=False)
    actor, critic = (
        mw.Trainer(deployer, params={"w": jnp.ones(4)}, loss=loss, optimizer=optax.adam(0.1), name=name)
        for name in ("actor", "critic")
    )
    rounds = deployer.rounds(4, carry={"seen": 0, "noise": np.zeros(4, np.float32)})
    for each in rounds:
        noise = np.asarray(jax.random.normal(deployer.gen_rng(), (4,)))
        x = X + noise
        actor.fit({"x": x, "y": x @ np.asarray(critic.params["w"])}, batch_size=16, epochs=1)
        if each.number == dies_in and not mw.parallel.is_lead():
            os.kill(os.getpid(), signal.SIGKILL)
        critic.fit({"x": x, "y": x @ np.asarray(actor.params["w"])}, batch_size=16, max_steps=1)
        each.carry = {"seen": each.carry["seen"] + len(x), "noise": each.carry["noise"] + noise}
    found = {"actor": actor.params["w"], "critic": critic.params["w"], "noise": rounds.carry["noise"]}
    return {name: np.asarray(value).tobytes().hex() for name, value in found.items()} | {
        "seen": rounds.carry["seen"]
    }


if __name__ == "__main__":
    mw.parallel.start_processes(timeout_seconds=400)
    workdir, result, dies_in = sys.argv[1:]
    found = play(workdir, int(dies_in))
    if mw.parallel.is_lead():
        Path(result).write_text(json.dumps(found))
