"""Runs that are killed while they go back to an earlier step."""

import itertools
import os
import shutil
import signal
from functools import partial

from crash.faults import before_each_file_operation
from crash.nursery import Child
from crash.scenarios import check, offered, state
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import verify
from meshwright.engine import _earlier_steps as _go_back
from meshwright.observe._jsonl import jsonl, read_jsonl

STEPS = (2, 4, 6)


def killed_while_going_back(directory):
    """Let the first, second, … operation of going back to step 2 be the last; then go back once more."""

    def go(run, number, tell):
        operations = itertools.count()
        before_each_file_operation(run, lambda _: _kill_me() if next(operations) == number else None)
        _go_back._go_back(2, run, run / "checkpoints")
        tell(True)

    Child(lambda tell: _save(directory / "saved")).wait()
    number, has_ended = 0, False
    while not has_ended:
        shutil.copytree(directory / "saved", run := directory / f"run_{number}")
        has_ended = bool(Child(partial(go, run, number)).end())
        _check_all(run)
        Child(partial(go, run, -1)).wait()
        _check_all(run)
        assert offered(run / "checkpoints") == [2]
        number += 1
    return {"operations": number - 1}


def _kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def _save(run):
    write = jsonl(run / "metrics.jsonl")
    with Checkpoints(run / "checkpoints", keep=len(STEPS)) as checkpoints:
        for step in STEPS:
            write(step, {"loss": 1.0})
            checkpoints.save(step, state(step))


def _check_all(run):
    """Check that each checkpoint is there and whole, by one name or another, and all reports in some file."""
    check(run / "checkpoints", told=2)
    later = {int(path.name[5:13]): path for path in run.glob("checkpoints/step_*.later-*")}
    for step, path in later.items():
        whole = shutil.copytree(path, run / "looked_at" / path.name[:13], dirs_exist_ok=True)
        assert not verify(whole).damage, step
    assert {*offered(run / "checkpoints"), *later} == {*STEPS}
    files = [run / "metrics.jsonl", *run.glob("attempts/metrics-*.jsonl")]
    assert any([report["step"] for report in read_jsonl(file)] == [*STEPS] for file in files)
