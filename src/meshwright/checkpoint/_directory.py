"""A directory of checkpoints: what its entries are called, which are complete, and who may write.

runs/text/checkpoints/
  step_00000800/                  a checkpoint: it has a manifest
    PINNED                        keeps it from being removed
  step_00001200.tmp-5e0c1a97/     being written or being removed, or left over from a killed run
  step_00001600.damaged-0b8e55d2/ was found to be damaged and set aside, for people to look at
  .lock                           locked by process 0 of the run that saves here, and names it

In an object store, where this differs: _remote.py.
"""

import fcntl
import io
import os
import re
import secrets
import shutil
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TextIO
from weakref import WeakSet

from meshwright.checkpoint import _remote
from meshwright.checkpoint._format import MANIFEST
from meshwright.checkpoint._object_path import Directory, ObjectPath, local
from meshwright.errors import CheckpointError, MeshwrightError, UsageError

PINNED = "PINNED"

_STEP = re.compile(r"step_([0-9]{8,})")
_TEMPORARY = re.compile(r"step_[0-9]{8,}\.tmp-[0-9a-f]{8}")
_locks: WeakSet[TextIO] = WeakSet()


def step_name(step: int) -> str:
    """Return what the checkpoint of `step` is called."""
    return f"step_{step:08d}"


def step_path(directory: Directory, step: int) -> Directory:
    """Return where the checkpoint of `step` is, or would be."""
    return directory / step_name(step)


def temporary_path(directory: Directory, step: int) -> Directory:
    """Return a fresh name for what is not a checkpoint of `step` yet, or no longer."""
    final = step_path(directory, step)
    return _remote.new_attempt(final) if isinstance(final, ObjectPath) else _fresh_name(final)


def final_path(temporary: Directory) -> Directory:
    """Return where that which is written into `temporary` will be a checkpoint."""
    if isinstance(temporary, ObjectPath):
        return temporary.parent
    return temporary.with_name(temporary.name.partition(".")[0])


def complete_steps(directory: Directory) -> list[int]:
    """Return the steps of which there is a complete checkpoint, in ascending order."""
    names = {path.name for path in directory.glob("step_*")}
    steps = sorted({int(match[1]) for name in names if (match := _STEP.fullmatch(name))})
    paths = {step: step_path(directory, step) for step in steps}
    return [step for step, path in paths.items() if path.name in names and (path / MANIFEST).is_file()]


def temporaries(directory: Directory) -> Sequence[Directory]:
    """Return the directories of saves and removals that are under way or were killed."""
    if isinstance(directory, ObjectPath):
        complete = {step_name(step) for step in complete_steps(directory)}
        steps = [path for path in directory.glob("step_*") if _STEP.fullmatch(path.name)]
        return [path for path in steps if path.name not in complete]
    named = (path for path in directory.glob("step_*.tmp-*") if _TEMPORARY.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def remove_temporaries(directory: Directory) -> None:
    """Remove what killed runs left. Only the one who holds the lock may."""
    if isinstance(directory, ObjectPath):
        _remove_overtaken(directory)
    else:
        for path in temporaries(directory):
            _remove_unless_pinned(local(str(path)))


def discard(temporary: Directory) -> None:
    """Remove what a failed save wrote, as far as that can be done."""
    if isinstance(temporary, ObjectPath):
        with suppress(MeshwrightError):
            _remote.discard(temporary)
    else:
        shutil.rmtree(temporary, ignore_errors=True)


def set_aside(directory: Path, step: int) -> Path:
    """Rename what stands where the checkpoint of `step` belongs, and return what it is called now."""
    aside = directory / f"{step_name(step)}.damaged-{secrets.token_hex(4)}"
    return (directory / step_name(step)).rename(aside)


def remove_step(directory: Directory, step: int) -> None:
    """Remove a checkpoint that is not pinned, so that it is at every moment either complete or not there.

    Whoever is killed at it leaves what `remove_temporaries` removes, or brings back.
    """
    path = step_path(directory, step)
    if (path / PINNED).is_file():
        return
    if isinstance(path, ObjectPath):
        _remote.remove_step(path)
    else:
        _remove_unless_pinned(path)


def lock(directory: Directory) -> TextIO:
    """Take the directory for this run; closing the returned file, or dying, gives it back.

    Object stores have no locks that end with their holders. There, of two that save one step, one wins.

    Raises:
      UsageError: Another run has it, or it is in an object store and cannot be used.
    """
    if isinstance(directory, ObjectPath):
        directory.probe()
        return io.StringIO()
    with ExitStack() as on_failure:
        file = on_failure.enter_context((directory / ".lock").open("a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(directory, file) from None
        with suppress(OSError):  # a full disk holds no word of it, and may be full of what is removed next
            file.truncate(0)
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        on_failure.pop_all()
    _locks.add(file)
    return file


def _fresh_name(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.tmp-{secrets.token_hex(4)}")


def _forget_locks() -> None:
    """Let go, in a forked process, of its parent's locks: it may live longer, as a data loader's worker."""
    for file in _locks:
        file.close()


os.register_at_fork(after_in_child=_forget_locks)


def _remove_unless_pinned(path: Path) -> None:
    """Remove a directory of a step, unless it holds a checkpoint that is pinned: that is put in its place.

    Under a new name first, that only this call knows. So nobody pins what is not looked at again, and
    no process of a killed run that is still writing there creates another file in it.
    """
    doomed = path.rename(_fresh_name(path))
    if (doomed / PINNED).is_file() and (doomed / MANIFEST).is_file():
        doomed.rename(str(final_path(doomed)))
        return
    (doomed / MANIFEST).unlink(missing_ok=True)  # what is not whole any more is not to be brought back
    shutil.rmtree(doomed)


def _remove_overtaken(directory: ObjectPath) -> None:
    latest = max(complete_steps(directory), default=-1)
    for path in list(directory.glob("step_*")):
        if (match := _STEP.fullmatch(path.name)) and int(match[1]) <= latest:
            with suppress(CheckpointError):  # what its manifest names is not known: all of it stays
                _remote.remove_leftovers(path)


def _in_use(directory: Path, file: TextIO) -> UsageError:
    file.seek(0)
    holder = file.read() or "another process"
    return UsageError(
        f"{directory} is already in use by {holder}: one run at a time may save there. "
        "Wait for it, stop it, or give this run a directory of its own."
    )
