"""A run of several processes with all parts open, into which one fault is built: what, where, and in whom."""

import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import meshwright as mw
from crash.faults import before_each_file_operation

ROWS = 64
ARMED = []
"""The fault, in the process that has it: in its memory, as nothing that the processes compare may show it."""
PHASES = ("start", "first_batch", "restore", "compile", "evaluation", "save")
TIMEOUTS = {"step": 5, **dict.fromkeys(PHASES, 10)}


def act(what: str, noted: Path) -> None:
    """Commit the fault, having noted when."""
    note = noted.with_suffix(f".{threading.get_ident()}")  # several threads may come here
    note.write_text(str(time.time()))
    note.rename(noted)
    if what == "exception":
        raise OSError("the fault that was built in")
    if what == "exit 0":
        os._exit(0)
    if what == "sys.exit":
        sys.exit()
    if what == "sleep":
        time.sleep(1000)
    os.kill(os.getpid(), int(what))


def commit() -> None:
    """Commit the fault, if this is the process that has it."""
    for fault in ARMED:
        fault()


class Rows:
    """Examples that act when so many have been read, those not counted that are read to be compared."""

    def __init__(self, fault, after=3, compared=12):
        self._fault, self._left = fault, after + compared

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        self._left -= 1
        if self._fault and self._left < 0:
            self._fault()
        return {"x": np.full(4, i / ROWS, np.float32)}


def experiment(workdir: str, what: str, where: str) -> mw.Experiment:
    """Return the experiment, the same on all processes, with a place for the fault."""
    here = lambda place: commit if place == where else None

    def loss(params, batch, key):
        if act := here("tracing"):
            act()
        if where == "step":  # the same program on all
            batch = {"x": watched(batch["x"])}
        return values(params, batch)["loss"].mean()

    @partial(jax.shard_map, in_specs=P("data"), out_specs=P("data"))
    def watched(x):
        jax.debug.callback(in_step)  # here, and not outside, on each of the devices
        return x

    calls = iter(range(1000))

    def in_step() -> None:
        if next(calls) == 2:
            commit()

    def when(step: int) -> bool:
        if (act := here("between steps")) and step == 3:
            act()
        return step % 2 == 0

    rows = Rows(here("first batch"), compared=0) if where == "first batch" else Rows(here("data"), after=20)
    if act := here("save"):
        checkpoints = Path(workdir, "checkpoints")
        writing = lambda event: act() if event == "fsync" else None
        before_each_file_operation(checkpoints, writing)
    return mw.Experiment(
        workdir=workdir,
        model=lambda key: {"w": jax.random.normal(key, (4, 2))},
        loss=loss,
        optimizer=optax.sgd(0.01),
        input=mw.Input(rows, batch_size=16),
        max_steps=6,
        evaluations={"all": mw.Evaluation(values, Rows(here("evaluation")), when, batch_size=16)},
        save=mw.Save(when=2),
        logging=mw.Logging(every=1),
        watchdog=mw.Watchdog(TIMEOUTS, kill=True) if what == "sleep" else None,
        compile=mw.Compile(cache=False),
    )


def values(params, batch):
    return {"loss": jnp.square(batch["x"] @ params["w"]).sum(-1)}


def main(said: str) -> None:
    """Play what is said in JSON."""
    run, what, where, who = json.loads(said)
    jax.config.update("jax_platforms", "cpu")
    mw.parallel.start_processes(timeout_seconds=400)
    is_it = os.environ["JAX_PROCESS_ID"] == str(who)
    if is_it:
        ARMED.append(lambda: act(what, Path(run, "acted")))
    if where == "before the first collective":
        commit()
    mw.run(experiment(run, what, where))


if __name__ == "__main__":
    main(sys.argv[1])
