"""Runs that save and are killed, or fail, at every point; after each, what is on disk is checked.

Three laws: what is offered is whole, bit for bit; what was told to be saved is offered; and the next
save succeeds.
"""

import errno
import itertools
import os
import random
import re
import resource
import shutil
import signal
import time
from contextlib import contextmanager
from functools import partial

import jax
import ml_dtypes
import numpy as np

from crash.faults import before_each_file_operation, refused, small_disk
from crash.nursery import Child
from meshwright.checkpoint import Checkpoints, last, open_source, restore, verify
from meshwright.errors import MeshwrightError


def state(step):
    """Return what is saved at `step`: 600 kB that follow from it."""
    chance = np.random.default_rng(step)
    return {
        "params": {"w": chance.standard_normal((100, 1000)), "b": chance.bytes(7) and np.arange(7) + step},
        "half": chance.standard_normal(333).astype(ml_dtypes.bfloat16),
        "none": np.zeros((0, 3)),
        "step": step,
    }


def offered(directory):
    found = [re.fullmatch(r"step_(\d{8})", path.name) for path in directory.iterdir()]
    return sorted(int(match[1]) for match in found if match)


def check(directory, told=-1, state=state):
    """Check that all that is offered is whole, and that `told`, or a later step, is."""
    steps = offered(directory)
    assert Checkpoints(directory).latest() == max(steps, default=None)
    assert told < 0 or steps[-1] >= told, f"{told} was saved, and there is {steps}"
    for step in steps:
        source = open_source(directory / f"step_{step:08d}")
        assert not verify(str(source)).damage, verify(str(source)).damage
        _assert_same(restore(source, state(step)), state(step))


def _assert_same(found, expected):
    same = jax.tree.map(lambda a, b: np.asarray(a).tobytes() == np.asarray(b).tobytes(), found, expected)
    assert all(jax.tree.leaves(same)), same


def save_on(directory, tell):
    """Save step after step, and tell of each when it is saved."""
    with Checkpoints(directory, keep=last(2)) as checkpoints:
        latest = checkpoints.latest()
        tell(-1 if latest is None else latest)
        for step in itertools.count(0 if latest is None else latest + 1):
            checkpoints.save(step, state(step))
            if step % 2:  # the other half of the time, the next save waits
                checkpoints.wait()
                tell(step)


def save_one(directory, step):
    with Checkpoints(directory, keep=last(1)) as checkpoints:
        checkpoints.save(step, state(step))


def killed_at_random(directory, kills):
    """Kill a run that saves, at random moments, and start it again."""
    in_a_save = 0
    for _ in range(kills):
        child = Child(lambda tell: save_on(directory, tell))
        told = child.hear()
        time.sleep(random.uniform(0, 0.03))
        told = max([told, *child.kill()])
        in_a_save += any(directory.glob("step_*.tmp-*"))
        check(directory, told)
    Child(lambda tell: save_one(directory, 10**7)).wait()
    check(directory, told=10**7)
    return {"in_a_save": in_a_save, "saved": told + 1}


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
        faulty[0] = False
        save_one(directory, saves)
        check(directory, told=saves)
        tell(failures)

    [failures] = Child(save_through_faults).wait()
    return {"failures": failures}


def read_only(directory):
    """Save to a directory that can only be read for a while."""

    def save_and_be_refused(tell):
        closed = []
        save_one(directory, 1)

        def refuse(_):
            if closed:
                raise refused(errno.EROFS)

        before_each_file_operation(directory, refuse)
        with Checkpoints(directory) as checkpoints:
            closed.append(True)
            try:
                checkpoints.save(2, state(2))
                checkpoints.wait()
            except MeshwrightError as error:
                tell(str(error))
            closed.clear()
            check(directory, told=1)
            checkpoints.save(2, state(2))
        check(directory, told=2)

    [said] = Child(save_and_be_refused).wait()
    return {"said": said}


def disk_full(directory, times):
    """Save to a disk with room for a part of a checkpoint, and again when there is room for it all."""

    def save_and_fill(tell):
        try:
            with small_disk(directory, 4 << 20):
                tell([_fails_then_succeeds(directory, _ballast(directory), step) for step in range(times)])
                tell("a small disk")
        except PermissionError:
            tell([_fails_then_succeeds(directory, _largest_file(), step) for step in range(times)])
            tell("a limit to the size of files")

    said, by = Child(save_and_fill).wait()
    return {"said": said, "by": by}


def _fails_then_succeeds(directory, little_room, step):
    with Checkpoints(directory, keep=last(1)) as checkpoints:
        with little_room:
            try:
                checkpoints.save(step, state(step))
                checkpoints.wait()
            except MeshwrightError as error:
                said = str(error)
        check(directory, told=step - 1)
        assert offered(directory) == ([step - 1] if step else [])
        checkpoints.save(step, state(step))
    check(directory, told=step)
    return said


@contextmanager
def _ballast(directory):
    """Leave less room than a checkpoint needs."""
    disk = os.statvfs(directory)
    free, room = disk.f_bavail * disk.f_bsize, random.randrange(0, 700_000)
    ballast = directory / "ballast"
    ballast.write_bytes(bytes(max(0, free - room)))
    yield
    ballast.unlink()


@contextmanager
def _largest_file():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (random.randrange(0, 700_000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _saves(directory, step):
    """Return whether a save succeeds."""
    try:
        save_one(directory, step)
    except MeshwrightError:
        return False
    return True
