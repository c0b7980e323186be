"""What checkpoints use of other threads and processes, in a simulated world."""

import pickle
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np

from meshwright.checkpoints import _saving
from meshwright.checkpoints._arrays import _restore
from meshwright.checkpoints._format import _commit
from meshwright.checkpoints._host_memory import _checkpoints as _tier
from meshwright.errors import PeersError
from meshwright.processes import _agree


class _Task(Future):
    def __init__(self, world):
        super().__init__()
        self._world = world

    def result(self, timeout=None):
        self._wait()
        return super().result()

    def exception(self, timeout=None):
        self._wait()
        return super().exception()

    def _wait(self):
        if not self.done():
            self._world.wait(self.done)


class _Executor:
    """An executor with one thread, which ends with the last task."""

    def __init__(self, world):
        self._world, self._queue, self._is_open = world, [], True
        world.spawn(world.current.process, self._work)

    def submit(self, act, *arguments):
        task = _Task(self._world)
        self._queue.append((task, act, arguments))
        return task

    def shutdown(self, wait=True):
        self._is_open = False
        if wait and self._queue:
            self._world.wait(lambda: not self._queue)

    def _work(self):
        while self._world.wait(lambda: self._queue or not self._is_open) and self._queue:
            task, act, arguments = self._queue[0]
            try:
                task.set_result(act(*arguments))
            except Exception as error:
                task.set_exception(error)
            self._queue.pop(0)


class _Event:
    def __init__(self, world):
        self._world, self._is_set = world, False

    def set(self):
        self._is_set = True

    def is_set(self):
        return self._is_set

    def wait(self, seconds):
        return self._world.wait(self.is_set, seconds)


class _Collectives:
    """Values that all processes of a run give and get; without one of them, the others get an error.

    If a process dies after it gave its value, it is drawn for each of the others whether it got the result.
    """

    def __init__(self, world):
        self._world, self._given = world, {}

    def _all(self, value):
        world, this = self._world, self._world.current.process
        given = self._given.setdefault((this.run, this.collectives), {})
        this.collectives += 1
        given[this.number] = pickle.dumps(value)

        def has_lost_one():
            return any(not (process.is_alive or process.has_ended_well) for process in this.group)

        world.wait(lambda: len(given) == this.count or has_lost_one())
        if len(given) < this.count or (has_lost_one() and world.drawn.random() < 0.5):
            raise PeersError("a process is gone, and this process cannot go on without it.")
        return [pickle.loads(given[number]) for number in range(this.count)]

    def process_allgather(self, value):
        return np.stack(self._all(value))

    def broadcast_one_to_all(self, value):
        return self._all(value)[0]


@contextmanager
def living_in(world):
    """Let checkpoints use the threads and processes of a simulated world, in the block."""
    changes = [
        (jax, "process_index", lambda: world.current.process.number),
        (jax, "process_count", lambda: world.current.process.count),
        (_agree, "multihost_utils", _Collectives(world)),
        (_restore, "compare", lambda about, text: None),  # by sockets; all processes read one disk
        (_saving, "ThreadPoolExecutor", lambda *_: _Executor(world)),
        (_commit, "_POLL_SECONDS", 10),  # of 60 that process 0 waits for others, and it is the same to them
        (_saving, "Event", lambda: _Event(world)),
        (_tier, "ThreadPoolExecutor", lambda *_: _Executor(world)),
        (_tier, "_END_SECONDS", 600),  # many of the intervals above
        (_tier, "free_nbytes", lambda path: 0),
        (_tier, "_POLL_SECONDS", 1),
        (_tier, "Event", lambda: _Event(world)),
        (_tier, "time", SimpleNamespace(sleep=lambda s: _sleep(world, s), monotonic=lambda: world.now)),
        (_saving, "futures", SimpleNamespace(wait=lambda tasks, timeout: _wait(world, tasks, timeout))),
    ]
    with contextmanager(_patched)(changes):
        yield


def _sleep(world, seconds):
    world.wait(lambda: False, seconds)


def _wait(world, tasks, seconds):
    world.wait(lambda: all(task.done() for task in tasks), seconds)


def _patched(changes):
    patches = [mock.patch.object(*change) for change in changes]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
