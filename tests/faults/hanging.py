"""A run of several processes, one of which stands still at step 60, or is slow."""

import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

import meshwright as mw

ROWS = 64
FAULT = []
"""What the process that has the fault does, in its memory: nothing that the processes compare may show it."""


def does(what):
    return what in FAULT


def keep_pythons_lock():
    ctypes.PyDLL(None).sleep(1000)


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def take_another_branch():
    multihost_utils.sync_global_devices("only here")


ACTS = {
    "sleep": lambda: time.sleep(1000),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "interpreter": keep_pythons_lock,
    "lock": wait_for_a_lock,
    "branch": take_another_branch,
}
"""What the policy of the evaluation does in the process that has the fault."""


class Rows:
    """Examples, the reading of which may stand still or be slow."""

    def __init__(self, at: int):
        self._left = 16 // 4 * (at + 10)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        self._left -= 1
        if does("data") and self._left < 0:
            time.sleep(1000)
        if does("no data") and self._left < 0:
            raise IndexError("there are no more rows")
        if does("slow"):
            time.sleep(0.05)
        return {"x": np.full(4, i / ROWS, np.float32)}


def measure(params, batch):
    return {"loss": jnp.square(batch["x"] @ params["w"]).sum(-1)}


def experiment(run: str, steps: int, at: int) -> mw.Experiment:
    """Return the experiment, the same on all processes."""

    def loss(params, batch, key):
        if does("compile"):
            time.sleep(10)
        return measure(params, batch)["loss"].mean()

    def when(step):
        for what in FAULT if step == at else ():
            ACTS.get(what, lambda: None)()
        return step % 20 == 0

    def keep(scores):
        if does("save") and at in scores:
            time.sleep(1000)
        if does("full disk") and at in scores:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return set(scores)

    @contextlib.contextmanager
    def tracker():
        def write(step, values):
            if does("tracker") and step == at:
                time.sleep(1000)

        yield write

    return mw.Experiment(
        workdir=run,
        model=lambda key: {"w": jax.random.normal(key, (4, 2))},
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input(Rows(at), batch_size=16),
        max_steps=steps,
        evaluations={"all": mw.Evaluation(measure, {"x": np.ones((64, 4), np.float32)}, when, batch_size=16)},
        save=mw.Save(when=20, keep=keep, directory=os.environ.get("STORE")),
        logging=mw.Logging(every=10, trackers=(tracker,), machine_seconds=1),
        watchdog=mw.Watchdog(learned="end", shortest_seconds=4),
        compile=mw.Compile(cache=False),
    )


def main(said: str) -> None:
    """Play what is said in JSON: the run directory, what happens to whom, the number of steps, and when it
    happens.
    """
    run, what, who, steps, at = json.loads(said)
    jax.config.update("jax_platforms", "cpu")
    mw.parallel.start_processes()
    if jax.process_index() == who:
        FAULT.append(what)
    mw.run(experiment(run, steps, at))


if __name__ == "__main__":
    main(sys.argv[1])
