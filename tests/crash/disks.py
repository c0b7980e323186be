"""Disks that are full for a while, or can only be read."""

import os
import random
import resource
from contextlib import contextmanager

from crash.faults import read_only, small_disk
from crash.nursery import Child
from crash.scenarios import check, offered, save_one, state
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._retention import last
from meshwright.errors import MeshwrightError


def turned_read_only(directory):
    """Save to a directory that can only be read for a while; answer what is said in the meantime."""

    def save_and_be_refused(tell):
        save_one(directory, 1)
        with Checkpoints(directory) as checkpoints:
            with read_only(directory):
                tell(_said(lambda: _save(checkpoints, 2)))
                tell(_said(lambda: save_one(directory, 2)))
                check(directory, told=1)
            checkpoints.save(2, state(2))
        check(directory, told=2)

    return Child(save_and_be_refused).wait()


def disk_full(directory, times):
    """Save to a disk with room for a part of a checkpoint, and again when there is room for it all."""

    def save_and_fill(tell):
        try:
            with small_disk(directory, 4 << 20):
                for step in range(times):
                    tell(_fails_then_succeeds(directory, _ballast(directory), step))
                tell("a small disk")
        except PermissionError:
            for step in range(times):
                tell(_fails_then_succeeds(directory, _largest_file(), step))
            tell("a limit to the size of files")

    *said, by = Child(save_and_fill).wait()
    return {"saves": len(said), "said": sorted({text.partition("] ")[2] for text in said}), "by": by}


def _fails_then_succeeds(directory, little_room, step):
    with Checkpoints(directory, keep=last(1)) as checkpoints:
        with little_room:
            said = _said(lambda: _save(checkpoints, step))
        check(directory, told=step - 1)
        assert offered(directory) == ([step - 1] if step else [])
        checkpoints.save(step, state(step))
    check(directory, told=step)
    return said


def _save(checkpoints, step):
    checkpoints.save(step, state(step))
    checkpoints.wait()


def _said(act):
    """Return the error that comes of it."""
    try:
        act()
    except MeshwrightError as error:
        return str(error)
    raise AssertionError("that should have failed")


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
