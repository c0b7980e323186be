"""Runs that are slow, stand still or have too little memory: what is planted, and what must be said."""

import contextlib
import ctypes
import os
import resource
import signal
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import meshwright as mw

ROWS, AT, STEPS = 64, 30, 60


def happens() -> None:
    """Note for whoever asks that the fault is there from now on."""
    Path(os.environ["PLANTED"], "happened").touch()


def hang() -> None:
    happens()
    time.sleep(1000)


class Rows:
    """Examples, before each of which something may happen."""

    def __init__(self, before=lambda number: None):
        self._before, self._number = before, 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        self._number += 1
        self._before(self._number)
        return {"x": np.full(4, i / ROWS, np.float32)}


def measure(params, batch):
    return {"loss": jnp.square(batch["x"] @ params["w"]).sum(-1)}


def loss(params, batch):
    return measure(params, batch)["loss"].mean()


def tracker(act):
    @contextlib.contextmanager
    def opened():
        yield lambda step, values: act(step)

    return opened


def experiment(workdir: str, **more) -> mw.Experiment:
    """Return a run that nothing is wrong with, but for what is given."""
    described = {
        "model": lambda key: {"w": jax.random.normal(key, (4, 2))},
        "loss": loss,
        "optimizer": optax.sgd(0.01),
        "input": mw.Input(Rows(), batch_size=16),
        "max_steps": STEPS,
        "save": mw.Save(when=20),
        "logging": mw.Logging(every=10, machine_seconds=0.5),
    }
    return mw.Experiment(workdir=workdir, **described | more)


def evaluation(when, **more):
    return {"all": mw.Evaluation(measure, {"x": np.ones((64, 4), np.float32)}, when, batch_size=16, **more)}


# Slow


def slow_input(workdir: str):
    return experiment(
        workdir, input=mw.Input(Rows(lambda number: time.sleep(0.02)), batch_size=16, num_threads=1)
    )


def slow_tracker(workdir: str):
    act = lambda step: time.sleep(1)  # noqa: E731
    return experiment(workdir, logging=mw.Logging(every=10, trackers=(tracker(act),)))


def slow_save(workdir: str):
    def keep(scores):
        time.sleep(1)
        return set(scores)

    return experiment(workdir, save=mw.Save(when=10, keep=keep))


def slow_evaluation(workdir: str):
    def metric_fn(scores):
        time.sleep(0.3)
        return {"late": 1.0}

    return experiment(workdir, evaluations=evaluation(4, metric_fn=metric_fn))


def stalled(workdir: str):
    """Return a run in which the devices take eight seconds for one step."""

    def late(step):
        time.sleep(8 if step == AT else 0)
        return np.float32(0)

    def slow_loss(params, batch):
        return loss(params, batch), {"late": 0.0}

    def update(value):
        return jax.pure_callback(late, jax.ShapeDtypeStruct((), np.float32), value)

    base = optax.sgd(0.01)

    def change(grads, state, params=None):
        count, inner = state
        changes, inner = base.update(grads, inner, params)
        zero = update(count)
        return jax.tree.map(lambda x: x + zero, changes), (count + 1, inner)

    def init(params):
        return jnp.zeros((), jnp.int32), base.init(params)

    return experiment(workdir, loss=slow_loss, optimizer=optax.GradientTransformation(init, change))


def dies_late(workdir: str):
    """Return a run that dies in its first attempt, far from its last save."""
    died = Path(os.environ["PLANTED"], "died")

    def act(step):
        time.sleep(0 if died.exists() else 1)
        if step == 50 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return experiment(
        workdir, save=mw.Save(when=1000), logging=mw.Logging(every=10, trackers=(tracker(act),))
    )


def waits_for_machines(workdir: str):
    """Return a run that dies soon after a save, and is started again much later."""
    died = Path(os.environ["PLANTED"], "died")

    def act(step):
        if step == 20 and not died.exists():
            died.touch()
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)

    return experiment(workdir, save=mw.Save(when=10), logging=mw.Logging(every=10, trackers=(tracker(act),)))


def much_to_exchange(workdir: str):
    """Return a run whose parameters are gathered over the axis fsdp for very few examples."""

    def wide(params, batch):
        with jax.named_scope("wide"):
            return jnp.square(jnp.tanh(batch["x"] @ params["a"]) @ params["b"]).mean()

    def model(key):
        return {"a": jax.random.normal(key, (4, 2**16)), "b": jax.random.normal(key, (2**16, 4))}

    return experiment(
        workdir,
        model=model,
        loss=wide,
        mesh="fsdp=4",
        rules=(mw.parallel.match("a", None, "fsdp"), mw.parallel.match("b", "fsdp", None)),
        profile=mw.Profile((20,), num_steps=10),
        optimizer=optax.sgd(1e-9),
        max_steps=300,
        save=mw.Save(when=1000),
    )


def slow_peer(workdir: str):
    """Return a run of several processes, the second of which reads slowly."""
    is_slow = jax.process_index() == 1

    def before(number):
        time.sleep(0.01 if is_slow else 0)
        if number == 64:
            happens()

    rows = mw.Input(Rows(before), batch_size=16, num_threads=1)
    return experiment(workdir, input=rows, max_steps=100_000)


# Does not start


def idle_axis(workdir: str):
    return experiment(workdir, mesh="data=2,tensor=2", rules=())


def no_memory(workdir: str):
    """Return a run whose step needs terabytes."""

    def huge(params, batch):
        rows = jnp.sort(jnp.broadcast_to(batch["x"][:, :1], (len(batch["x"]), 2**37)), axis=0)
        return loss(params, batch) + jax.lax.stop_gradient(rows).min() * 0

    return experiment(workdir, loss=huge)


def little_memory(workdir: str):
    """Return a run whose step needs 3 GiB, in a process that may take one and a half more than it has."""

    def large(params, batch):
        rows = jnp.sort(jnp.broadcast_to(batch["x"][:, :1], (len(batch["x"]), 2**25)), axis=0)
        return loss(params, batch) + jax.lax.stop_gradient(rows).min() * 0

    jax.devices()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 3 * 2**29
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return experiment(workdir, loss=large)


# Stands still


def stuck_in_data(workdir: str):
    rows = Rows(lambda number: hang() if number == 16 * AT else None)
    return experiment(workdir, input=mw.Input(rows, batch_size=16))


def stuck_in_a_tracker(workdir: str):
    act = lambda step: hang() if step == AT else None  # noqa: E731
    return experiment(workdir, logging=mw.Logging(every=10, trackers=(tracker(act),)))


def stuck_in_a_save(workdir: str):
    def keep(scores):
        if 20 in scores:
            hang()
        return set(scores)

    return experiment(workdir, save=mw.Save(when=20, keep=keep))


def stuck(workdir: str, act):
    """Return a run that does something when it asks whether to evaluate."""

    def when(step):
        if step == AT:
            happens()
            act()
        return step % 10 == 0

    return experiment(workdir, evaluations=evaluation(when))


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def stuck_at_a_lock(workdir: str):
    return stuck(workdir, wait_for_a_lock)


def stopped_by_a_signal(workdir: str):
    return stuck(workdir, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def keeps_pythons_lock(workdir: str):
    return stuck(workdir, lambda: ctypes.PyDLL(None).sleep(1000))


def killed_without_a_word(workdir: str):
    return stuck(workdir, lambda: os.kill(os.getpid(), signal.SIGKILL))
