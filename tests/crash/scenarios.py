"""Runs that save and are killed, or fail, at every point; after each, what is on disk is checked.

Three laws: what is offered is whole, bit for bit; what was told to be saved is offered; and the next
save succeeds.
"""

import errno
import functools
import itertools
import os
import random
import re
import shutil
import signal
import time
from functools import partial

import jax
import ml_dtypes
import numpy as np

from crash.faults import before_each_file_operation, refused
from crash.nursery import Child, report
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._format import _write
from meshwright.checkpoints._format._snapshot import HOST_NBYTES
from meshwright.checkpoints._formats._inspect import pin, verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, MeshwrightError

_write._WINDOW = 1 << 18  # so that these small files, too, are written in several windows


def state(step):
    """Return what is saved at `step`: 800 kB that follow from it."""
    return {
        "params": {"w": _numbers(step % 3), "b": np.arange(7) + step},
        "half": np.arange(333).astype(ml_dtypes.bfloat16) + step % 3,
        "none": np.zeros((0, 3)),
        "step": step,
    }


@functools.cache  # so that runs spend their time in saving
def _numbers(seed):
    return np.random.default_rng(seed).standard_normal((100, 1000))


def step_path(directory, step):
    return directory / f"step_{step:08d}"


def offered(directory):
    found = [re.fullmatch(r"step_(\d{8})", path.name) for path in directory.iterdir()]
    return sorted(int(match[1]) for match in found if match)


def check(directory, told=-1, state=state):
    """Check that all that is offered is whole, and that `told`, or a later step, is; return how many are."""
    steps = offered(directory)
    assert Checkpoints(directory).latest() == max(steps, default=None)
    assert told < 0 or steps[-1] >= told, f"{told} was saved, and there is {steps}"
    for step in steps:
        source = open_source(step_path(directory, step))
        assert not verify(str(source)).damage, verify(str(source)).damage
        _assert_same(restore(source, state(step)), state(step))
    return len(steps)


def _assert_same(found, expected):
    same = jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), found, expected)
    assert all(jax.tree.leaves(same)), same


def save_on(directory, host_nbytes, tell):
    """Resume, save step after step, and tell of each when it is saved."""
    with Checkpoints(directory, keep=last(2), host_nbytes=host_nbytes) as checkpoints:
        restored = checkpoints.resume(state(0), None, otherwise=lambda: state(-1))
        _assert_same(restored, state(restored["step"]))
        assert not checkpoints.passed_over
        tell(restored["step"])
        for step in itertools.count(restored["step"] + 1):
            checkpoints.save(step, state(step))
            if step % 2:  # the other half of the time, the next save waits
                checkpoints.wait()
                tell(step)


def save_one(directory, step):
    with Checkpoints(directory, keep=last(1)) as checkpoints:
        checkpoints.save(step, state(step))


def killed_at_random(directory, kills):
    """Kill a run that saves, at random moments, until `kills` were in a save; each time start it again."""
    in_a_save = restored = 0
    for num_kills in range(1, 5 * kills):
        child = Child(partial(save_on, directory, random.choice((1, HOST_NBYTES))))
        told = child.hear()
        for _ in range(random.randrange(2)):
            told = child.hear()
        time.sleep(random.uniform(0, 0.03))
        told = max([told, *child.kill()])
        in_a_save += any(directory.glob("step_*.tmp-*"))
        restored += check(directory, told)
        figures = {"kills": num_kills, "in_a_save": in_a_save, "steps": told + 1, "restored": restored}
        report(**figures)
        if in_a_save == kills:
            break
    Child(lambda tell: save_one(directory, 10**7)).wait()
    check(directory, told=10**7)
    return figures


def at_each_file_operation(directory, fault):
    """Let the first, second, … operation of a save that removes an older checkpoint be the last, or fail."""
    act = {"kill": _kill_me, "fail": _fail}[fault]

    def save_until_fault(number, tell):
        operations = itertools.count()
        before_each_file_operation(directory, lambda _: act() if next(operations) == number else None)
        tell(_saves(directory, 2))
        tell(next(operations) > number)

    Child(lambda tell: save_one(directory, 1)).wait()
    shutil.copytree(directory, saved := directory.with_suffix(".saved"))
    number, reached = 0, True
    while reached:
        shutil.rmtree(directory)
        shutil.copytree(saved, directory)
        succeeded, reached = Child(partial(save_until_fault, number)).end() or (False, True)
        check(directory, told=2 if succeeded else 1)
        Child(lambda tell: save_one(directory, 2)).wait()
        check(directory, told=2)
        number += 1
    return {"operations": number - 1}


def pinned_in_a_removal(directory, killed):
    """Pin a checkpoint before each file operation of its removal; kill the run at the next one, or do not."""

    def pin_before(number, tell):
        operations, pinning = itertools.count(), []

        def act(_):
            if pinning or not step_path(directory, 2).exists():
                return
            operation = next(operations)
            if operation == number:
                pinning.append(True)
                tell(_try_to_pin(directory, 1))
                pinning.clear()
            elif operation > number and killed:
                _kill_me()

        before_each_file_operation(directory, act)
        save_one(directory, 2)

    Child(lambda tell: save_one(directory, 1)).wait()
    shutil.copytree(directory, saved := directory.with_suffix(".saved"))
    outcomes = []
    while told := Child(partial(pin_before, len(outcomes))).end():
        outcomes += told
        Child(lambda tell: save_one(directory, 3)).wait()
        check(directory, told=3)
        assert told == ["refused"] or 1 in offered(directory), f"step 1 was pinned, and is lost: {outcomes}"
        shutil.rmtree(directory)
        shutil.copytree(saved, directory)
    return outcomes


def _try_to_pin(directory, step):
    try:
        pin(step_path(directory, step))
    except CheckpointError:
        return "refused"
    return "pinned"


def _kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def _fail():
    raise refused(errno.ENOSPC)


def failing_at_random(directory, saves):
    """Save to a store of which now and then an operation fails, until each save has succeeded."""

    def save_through_faults(tell):
        chance, faulty, failures = random.Random(), [True], 0

        def maybe_fail(_):
            if faulty[0] and chance.random() < 0.05:
                raise refused(errno.EIO)

        before_each_file_operation(directory, maybe_fail)
        for step in range(saves):
            while step not in offered(directory):
                failures += not _saves(directory, step)
                faulty[0] = False
                check(directory, told=step - 1)
                faulty[0] = True
            tell(step)
        faulty[0] = False
        save_one(directory, saves)
        check(directory, told=saves)
        tell(failures)

    *steps, failures = Child(save_through_faults).wait()
    return {"steps": len(steps), "failures": failures}


def _saves(directory, step):
    """Return whether a save succeeds."""
    try:
        save_one(directory, step)
    except MeshwrightError:
        return False
    return True
