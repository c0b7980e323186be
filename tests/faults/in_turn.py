"""A run of four processes, which stand still one after the other, each until somebody lets it go on."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

import meshwright as mw

ROWS, BATCH_SIZE, EVERY = 64, 16, 10
STEPS = {
    "interpreter": 35,
    "data": 50,
    "lock": 60,
    "stop": 70,
    "store": 80,
    "tracker": 100,
    "save": 110,
    "branch": 130,
}
"""What happens, and in which step."""
IN_DATA = ("data", "lock", "stop", "store")
OWN = {}
"""What this process does, by step, in its memory: nothing that the processes compare may show it."""
DOOR = []
"""The descriptor of a pipe from which one byte lets this process go on, and the port of the dead store."""


def hold():
    os.read(DOOR[0], 1)


def keep_pythons_lock():
    time.sleep(0.5)  # until the board says where it stands
    ctypes.PyDLL(None).read(DOOR[0], ctypes.create_string_buffer(1), 1)


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lambda: (hold(), lock.release())).start()
    lock.acquire()


def read_from_a_dead_store():
    with socket.create_connection(("127.0.0.1", DOOR[1])) as store:
        store.recv(1)


def stop():
    time.sleep(0.5)  # until the board says where it stands
    os.kill(os.getpid(), signal.SIGSTOP)


def take_another_branch():
    multihost_utils.sync_global_devices("only here")


ACTS = {
    "interpreter": keep_pythons_lock,
    "data": hold,
    "lock": wait_for_a_lock,
    "stop": stop,
    "store": read_from_a_dead_store,
    "tracker": hold,
    "save": hold,
    "branch": take_another_branch,
}


def act(step, *kinds):
    if OWN.get(step) in kinds:
        ACTS[OWN.pop(step)]()


class Rows:
    """Examples, the reading of which may stand still."""

    def __init__(self):
        self._number = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        self._number += 1
        act(self._number * 4 / BATCH_SIZE, *IN_DATA)
        return {"x": np.full(4, i / ROWS, np.float32)}


def measure(params, batch):
    return {"loss": jnp.square(batch["x"] @ params["w"]).sum(-1)}


def experiment(run: str) -> mw.Experiment:
    """Return the experiment, the same on all processes."""

    def loss(params, batch, key):
        if jax.process_index() == 1:
            time.sleep(1.5)  # to compile takes longer than anything later
        return measure(params, batch)["loss"].mean()

    def when(step):
        act(step, "interpreter", "branch")
        return step % EVERY == 0

    def keep(scores):
        for step in scores:
            act(step, "save")
        return set(scores)

    @contextlib.contextmanager
    def tracker():
        yield lambda step, values: act(step, "tracker")

    return mw.Experiment(
        workdir=run,
        model=lambda key: {"w": jax.random.normal(key, (4, 2))},
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input(Rows(), batch_size=BATCH_SIZE),
        max_steps=1000,
        evaluations={"all": mw.Evaluation(measure, {"x": np.ones((64, 4), np.float32)}, when, batch_size=16)},
        save=mw.Save(when=EVERY, keep=keep),
        logging=mw.Logging(every=EVERY, trackers=(tracker,)),
        watchdog=mw.Watchdog(shortest_seconds=1),
        compile=mw.Compile(cache=False),
    )


def main(run: str, pipes: str, port: str, plan: str) -> None:
    """Play a plan: by what happens, to which process.

    Beside `pipes` is a pipe for each process, which ends in its number.
    """
    jax.config.update("jax_platforms", "cpu")
    mw.process.start()
    own = jax.process_index()
    OWN.update({STEPS[what]: what for what, who in json.loads(plan).items() if who == own})
    DOOR.extend([os.open(f"{pipes}{own}", os.O_RDWR), int(port)])
    mw.run(experiment(run))


if __name__ == "__main__":
    main(*sys.argv[1:])
