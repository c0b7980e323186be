"""A directory of checkpoints: what its entries are called, which are complete, and who may write.

runs/text/checkpoints/
  step_00000800/                  a checkpoint: it has a manifest
  step_00001200.tmp-5e0c1a97/     being written or being removed, or left over from a killed run
  step_00001600.damaged-0b8e55d2/ was found to be damaged and set aside, for people to look at
  .lock                           locked by process 0 of the run that saves here, and names it
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from meshwright.checkpoint._format import MANIFEST
from meshwright.errors import UsageError

_STEP = re.compile(r"step_([0-9]{8,})")
_TEMPORARY = re.compile(r"step_[0-9]{8,}\.tmp-[0-9a-f]{8}")


def local_directory(path: str | Path) -> Path:
    """Return `path` as an absolute path, with `~` resolved.

    Raises:
      UsageError: It is the address of an object store; there would be a directory called `s3:`.
    """
    if "://" in str(path):
        raise UsageError(f"{path} is not a local directory; checkpoints are kept on file systems only.")
    return Path(path).expanduser().absolute()


def step_path(directory: Path, step: int) -> Path:
    """Return where the checkpoint of `step` is, or would be."""
    return directory / f"step_{step:08d}"


def temporary_path(directory: Path, step: int) -> Path:
    """Return a fresh name for what is not a checkpoint of `step` yet, or no longer."""
    return directory / f"step_{step:08d}.tmp-{secrets.token_hex(4)}"


def complete_steps(directory: Path) -> list[int]:
    """Return the steps of which there is a complete checkpoint, in ascending order."""
    names = {path.name for path in directory.glob("step_*")}
    steps = sorted({int(match[1]) for name in names if (match := _STEP.fullmatch(name))})
    paths = {step: step_path(directory, step) for step in steps}
    return [step for step, path in paths.items() if path.name in names and (path / MANIFEST).is_file()]


def temporaries(directory: Path) -> list[Path]:
    """Return the directories of saves and removals that are under way or were killed."""
    named = (path for path in directory.glob("step_*.tmp-*") if _TEMPORARY.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def remove_temporaries(directory: Path) -> None:
    """Remove what killed runs left. Only the one who holds the lock may."""
    for path in temporaries(directory):
        shutil.rmtree(path)


def remove_step(directory: Path, step: int) -> None:
    """Remove a checkpoint, so that it is at every moment either complete or not there."""
    doomed = step_path(directory, step).rename(temporary_path(directory, step))
    shutil.rmtree(doomed)


def set_aside(directory: Path, step: int) -> Path:
    """Rename what stands where the checkpoint of `step` belongs, and return what it is called now."""
    return step_path(directory, step).rename(directory / f"step_{step:08d}.damaged-{secrets.token_hex(4)}")


def lock(directory: Path) -> TextIO:
    """Take the directory for this run; closing the returned file, or dying, gives it back.

    Raises:
      UsageError: Another run has it.
    """
    with ExitStack() as on_failure:
        file = on_failure.enter_context((directory / ".lock").open("a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(directory, file) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        on_failure.pop_all()
    return file


def _in_use(directory: Path, file: TextIO) -> UsageError:
    file.seek(0)
    holder = file.read() or "another process"
    return UsageError(
        f"{directory} is already in use by {holder}: one run at a time may save there. "
        "Wait for it, stop it, or give this run a directory of its own."
    )
