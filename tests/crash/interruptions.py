"""Runs that are interrupted, forked, or outlived by what they forked."""

import gc
import itertools
import os
import signal
from contextlib import suppress

import numpy as np

from crash.faults import before_line
from crash.nursery import Child
from crash.scenarios import check
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import UsageError


def state(step):
    return {"a": np.arange(3) + step, "b": np.arange(4) + step}


def interrupted_before(number):
    """Press Ctrl-C before the line of that number."""

    def interrupt():
        raise KeyboardInterrupt

    return before_line(number, interrupt)


def stay(directory, number):
    """Interrupt a save, and save on; answer whether it had ended before."""
    with Checkpoints(directory, keep=last(1), host_nbytes=1) as checkpoints:
        try:
            with interrupted_before(number):
                checkpoints.save(2 * number, state(2 * number))
                checkpoints.wait()
            return True
        except KeyboardInterrupt:
            checkpoints.save(2 * number + 1, state(2 * number + 1))
            return False


def leave(directory, number):
    """Interrupt a whole run with one save, and come back; answer whether it had ended before."""
    with suppress(KeyboardInterrupt), interrupted_before(number):
        run(directory, 2 * number)
        return True
    while True:
        with suppress(UsageError):
            run(directory, 2 * number + 1)
            return False
        gc.collect()  # what is interrupted before the first line of its `__exit__` is locked until then


def run(directory, step):
    with Checkpoints(directory, keep=last(1), host_nbytes=1) as checkpoints:
        checkpoints.save(step, state(step))


def interrupted_before_each_line(directory, then):
    """Press Ctrl-C before the first, second, … line of a save, where one chunk at a time finds room."""

    def interrupt_everywhere(tell):
        for number in itertools.count():
            finished = {"stay": stay, "leave": leave}[then](directory, number)
            check(directory, 2 * number + (not finished), state)
            tell(number)
            if finished:
                return

    return {"lines": len(Child(interrupt_everywhere).wait()) - 1}


def restored_in_a_fork(directory):
    """Restore so much that threads read it; then fork, as a loader of data does, and restore again."""
    large = {"x": np.arange(3 << 20)}

    def read():
        return bool((restore(open_source(directory), large)["x"] == large["x"]).all())

    def read_and_fork(tell):
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(1, large)
        tell([read(), *Child(lambda tell: tell(read())).wait()])

    return Child(read_and_fork).wait()[0]


def outlived_by_a_worker(directory):
    """Kill a run that has forked a worker, and let the next one save while that worker lives."""

    def fork_and_die(tell):
        with Checkpoints(directory):
            tell(Child(lambda _: signal.pause()).pid)
            os.kill(os.getpid(), signal.SIGKILL)

    killed = Child(fork_and_die)
    worker = killed.hear()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    try:
        Child(lambda _: run(directory, 1)).wait()
    finally:
        os.kill(worker, signal.SIGKILL)
        killed.end()
    check(directory, 1, state)
