"""The power fails at any operation of saves and removals; any part of what was not flushed is lost."""

import copy
import random

import numpy as np
import pytest

from meshwright.base._files import write_whole
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._directory import remove_step, saved_steps
from meshwright.checkpoints._format import _commit
from meshwright.checkpoints._formats._inspect import pin, unpin, verify
from simulated.disk import Disk
from simulated.system import ROOT, System, mounted
from soak import cases, rng

DIRECTORY = ROOT / "runs" / "digits" / "checkpoints"
DRAWS = 3
"""The number of times that each cut is tried: each time other parts are lost."""


class PowerCut(BaseException):
    """The end of everything that runs."""


@pytest.fixture
def disk():
    disk = Disk()
    with mounted(System(disk)):
        yield disk


def cut(disk, program, check, after, draw):
    """Run a program on a copy of a disk until the power fails, and check what is left.

    Returns whether the program came to its end.

    `check` gets what the program has told, by calling `tell`, until then.
    """
    disk, told, operations = copy.deepcopy(disk), [], iter(range(after))
    system = System(disk)

    def count(*_):
        if next(operations, None) is None:
            raise PowerCut

    with mounted(system):
        has_ended = True
        try:
            disk.before = count
            program(told.append)
        except PowerCut:
            has_ended = False
        disk.before = lambda *_: None
        system.end()
        disk.lose_power(random.Random(f"{after}/{draw}"))
        try:
            check(told)
        except AssertionError as error:
            error.add_note(f"the power failed before operation {after}; draw {draw}")
            raise
    return has_ended


def cut_everywhere(disk, program, check, stride=1):
    """Cut a program before its operations, as many times as it takes until it ends, and then once more."""
    after = rng("power cuts").randrange(stride) - stride
    has_ended = False
    while not has_ended:
        after += stride
        for draw in range(DRAWS):
            has_ended = cut(disk, program, check, after, draw)
    return after


def state(step):
    return {"w": np.full(4, step, np.float32)}


def save(*steps, tell=lambda step: None):
    with Checkpoints(DIRECTORY, keep=1) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step))
            checkpoints.wait()
            tell(step)


def found():
    """Return the step that a run continues from, having checked that every checkpoint is whole."""
    with Checkpoints(DIRECTORY) as checkpoints:
        restored = checkpoints.resume(state(0), None, otherwise=lambda: None)
        assert not checkpoints.passed_over
    for step in saved_steps(DIRECTORY):
        assert not verify(DIRECTORY / f"step_{step:08d}").damage
    if restored is None:
        return -1
    np.testing.assert_array_equal(restored["w"], state(checkpoints.resumed)["w"])
    return checkpoints.resumed


def check_newest(told):
    assert found() >= max(told, default=-1)


def test_a_file_that_is_written_whole_is_there_after_a_power_cut(disk):
    write_whole(ROOT / "file", b"content")
    disk.lose_power(random.Random(0))
    assert (ROOT / "file").read_bytes() == b"content"


@pytest.mark.soak
def test_a_step_that_is_told_as_saved_is_there_after_a_power_cut():
    assert cut_everywhere(Disk(), lambda tell: save(1, 2, tell=tell), check_newest, cases(40, 1)) > 40


def test_a_step_in_a_directory_whose_maker_was_killed_is_there_after_a_power_cut(disk):
    DIRECTORY.mkdir(parents=True)
    save(1)
    disk.lose_power(random.Random(0))
    assert found() == 1


def test_a_pinned_checkpoint_is_there_whose_run_was_killed_before_it_flushed_the_commit(disk, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(_commit, "fsync_directory", lambda path: None)
        save(1)
    pin(DIRECTORY / "step_00000001")
    for seed in range(8):
        after = copy.deepcopy(disk)
        after.lose_power(random.Random(seed))
        assert after.find((*DIRECTORY.parts[2:], "step_00000001", "PINNED"))


def test_a_checkpoint_whose_removal_ends_in_a_power_cut_is_whole_or_gone(disk):
    save(1)
    pin(DIRECTORY / "step_00000001")
    save(2)

    def remove(tell):
        unpin(DIRECTORY / "step_00000001")
        remove_step(DIRECTORY, 1)

    def check(told):
        assert found() == 2

    assert cut_everywhere(disk, remove, check) > 8
