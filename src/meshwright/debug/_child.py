"""A process of `verify_resume`: it runs an experiment for some steps, notes what it does, and may be killed.

Notes are lines of JSON, each flushed, so that they outlive the kill:

    {"note": "saved", "cast": false, "names": false, "data_position": true}
    {"note": "program", "digest": "1f2e…", "lines": [["model.py:3 in loss", "mul f32[] 0.25"], …], …}
    {"note": "first", "arrays": {"params/w": "9a8b…"}}       the first state, if this process makes it
    {"note": "batch", "number": 7, "arrays": {"x": "77aa…"}}
    {"note": "repeated", "different": ["params/w"], "calls": ["model.py:9 in loss"]}
"""

import dataclasses
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.checkpoints._internal import complete_steps
from meshwright.debug._steps import copied, opened
from meshwright.debug._words import lines_of
from meshwright.engine._internal import (
    Compile,
    Experiment,
    Logging,
    Profile,
    Stop,
    Training,
    on_devices,
    run_engine,
    settings_for,
    training_of,
)
from meshwright.processes import _internal as processes
from meshwright.program._internal import jaxprs

_SAVED_SECONDS = 120.0
"""The longest time to wait for the first checkpoint before the process kills itself."""
_REPETITIONS = 3
Note = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Orders:
    """What a process of `verify_resume` does."""

    workdir: str
    """The scratch directory of the run."""
    notes: str
    """The file to which notes are appended."""
    steps: int
    """The number of steps of the whole run."""
    when: int
    """The number of steps between checkpoints."""
    kill_after: int | None = None
    """The step after which the process kills itself; None for never."""
    repeats: bool = False
    """True to repeat one step of a run that has ended, instead of running it."""


def play(experiment: Experiment, orders: Orders) -> None:
    """Run an experiment, or repeat one of its steps, as ordered."""
    with Path(orders.notes).open("a", encoding="utf-8") as file:

        def note(kind: str, **more: Any) -> None:
            file.write(json.dumps({"note": kind, **more}) + "\n")
            file.flush()

        save = experiment.save
        note("saved", cast=bool(save.cast), names=save.names is not None, data_position=save.data_position)
        experiment = _alone(experiment, orders)
        if orders.repeats:
            _repeat(experiment, note)
        else:
            _run(experiment, orders, note)


def _alone(experiment: Experiment, orders: Orders) -> Experiment:
    """Return the experiment reduced to training, without the user's directories and trackers."""
    save = dataclasses.replace(
        experiment.save, when=orders.when, keep=orders.steps + 1, directory=None, memory=None
    )
    return dataclasses.replace(
        experiment,
        workdir=orders.workdir,
        max_steps=orders.steps,
        save=save,
        logging=Logging(every=1, norms=experiment.logging.norms),
        compile=Compile(options=experiment.compile.options),
        evaluations={},
        samples=None,
        profile=Profile(),
        stop=Stop(),
        watchdog=None,
    )


@processes.collective()
def _run(experiment: Experiment, orders: Orders, note: Note) -> None:
    experiment = on_devices(experiment)
    experiments = [experiment]

    def make(stack: Any, watch: Any) -> Training:
        training = training_of(experiments, stack, watch)
        data = _NotedData(training, partial(_noted_program, training, note), note, orders)
        return dataclasses.replace(training, data=data, first_state=partial(_noted_first, training, note))

    run_engine(settings_for(experiment, None), make)


def _noted_program(training: Training, note: Note) -> None:
    step = training.step
    note("program", digest=step.digest, lines=list(_lines(step.jaxpr)), metrics=list(step.returned[1]))


def _noted_first(training: Training, note: Note, newest: int | None) -> Callable[[], Any]:
    make = training.first_state(newest)

    def noted() -> Any:
        state = make()
        note("first", arrays=_digests(state))
        return state

    return noted


class _NotedData:
    """The batches of a run, each noted when it is taken; the process is killed at the ordered one."""

    def __init__(self, training: Training, first: Callable[[], None], note: Note, orders: Orders):
        self._data, self._first, self._note, self._orders = training.data, first, note, orders
        self._number, self._has_begun = 0, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    @property
    def wait_seconds(self) -> float:
        return self._data.wait_seconds

    def is_empty(self) -> bool:
        return self._data.is_empty()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        if not self._has_begun:
            self._first()
            self._has_begun = True
        if self._number == self._orders.kill_after:
            _kill(Path(self._orders.workdir) / "checkpoints", self._number, self._orders.when)
        batch = next(self._data)
        self._number += 1
        self._note("batch", number=self._number, arrays=_digests(batch))
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"number": self._number, "data": self._data.get_state()}

    def set_state(self, state: dict[str, Any], /) -> None:
        self._number = state["number"]
        self._data.set_state(state["data"])


def _kill(checkpoints: Path, step: int, when: int) -> None:
    """Kill this process by SIGKILL, as soon as its newest checkpoint is complete, to continue from that."""
    newest, until = step - step % when, time.monotonic() + _SAVED_SECONDS
    while newest not in complete_steps(checkpoints) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def _repeat(experiment: Experiment, note: Note) -> None:
    """Make one step several times from the same state and batch, and note what differs."""
    # Any batch will do: the first one.
    save = dataclasses.replace(experiment.save, data_position=False)
    with opened(dataclasses.replace(experiment, save=save), None) as played:
        batch = next(played.training.data, None)
        if batch is None:
            return
        digests = [_step(played.training, played.state, batch) for _ in range(_REPETITIONS)]
        different = {name for other in digests[1:] for name in other if other[name] != digests[0][name]}
        calls = {line for line, text in _lines(played.training.step.jaxpr) if "callback" in text}
        note("repeated", different=sorted(different), calls=sorted(calls))


def _step(training: Training, state: Any, batch: PyTree) -> dict[str, str]:
    next_state, metrics = training.step(copied(state), batch)
    return _digests({"state": next_state, "metrics": dict(metrics)})


def _digests(arrays: PyTree) -> dict[str, str]:
    return {name: _digest(x) for name, x in tree.named_leaves(arrays).items()}


def _digest(x: Any) -> str:
    if hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    array = np.ascontiguousarray(np.asarray(x))
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]


def _lines(jaxpr: Any) -> Iterator[tuple[str, str]]:
    """Yield for each equation the line of source and its text, with the values of constants."""
    constants = jaxprs.constants(jaxpr)
    for eqn in jaxprs.opened(jaxpr).eqns:
        operands = [_operand(atom, constants) for atom in eqn.invars]
        yield lines_of(eqn)[0], " ".join([eqn.primitive.name, *operands])
        for inner in jaxprs.inside(eqn):
            yield from _lines(inner)


def _operand(atom: Any, constants: Mapping[Any, Any]) -> str:
    value = atom.val if jaxprs.is_literal(atom) else constants.get(atom)
    if value is None:
        return str(atom.aval)
    if np.ndim(value) == 0 and not hasattr(value, "sharding"):
        return f"{np.asarray(value).dtype}({value})"
    array = np.asarray(value)
    start = ", ".join(f"{x:.6g}" for x in array.reshape(-1)[:3].tolist()) if array.dtype.kind in "fiu" else ""
    return f"{array.dtype}{list(array.shape)}({start}, …; {_digest(array)[:8]})"
