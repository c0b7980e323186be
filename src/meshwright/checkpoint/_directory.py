"""A directory of checkpoints: what its entries are called, which are complete, and who may write.

runs/text/checkpoints/
  step_00000800/                  a checkpoint: it has a manifest
    PINNED                        keeps it from being removed
  step_00001200.tmp-5e0c1a97/     being written or being removed, or left over from a killed run
  step_00001600.damaged-0b8e55d2/ was found to be damaged and set aside, for people to look at
  step_00002000.later-91d2b7f0/   was set aside when the run went back to an earlier step
  .lock, .lock.holder             held by process 0 of the run that saves here; the second names it

In an object store, where this differs: _remote.py.
"""

import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from meshwright import process
from meshwright.checkpoint import _remote
from meshwright.checkpoint._format import MANIFEST
from meshwright.durable import fsync_directory
from meshwright.errors import CheckpointError, MeshwrightError, UsageError
from meshwright.storage import Directory, ObjectPath

LOCK = ".lock"
PINNED = "PINNED"
"""The file that keeps a checkpoint from being removed."""
Aside = Literal["damaged", "later"]
ASIDE = get_args(Aside)
"""Why a checkpoint may be set aside, which its name says."""
_PROBE = ".probe-"

_STEP = re.compile(r"step_([0-9]{8,})")
_TEMPORARY = re.compile(r"step_[0-9]{8,}\.tmp-[0-9a-f]{8}")


def of_checkpoints(directory: Directory) -> Directory:
    """Return a directory, if checkpoints can be saved there.

    Raises:
      UsageError: They cannot.
    """
    if isinstance(directory, ObjectPath) and not directory.store.creates:
        raise UsageError(
            f"{directory} cannot hold checkpoints: of two runs that save one step, one must win. Expected "
            "s3://, gs:// or az://bucket/path, or a directory.\n  Checkpoints may be elsewhere than the "
            "rest of a run: save.directory."
        )
    return directory


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
    if isinstance(directory, ObjectPath):
        complete = [path.parent for path in directory.glob(f"step_*/{MANIFEST}")]  # one request
    else:
        complete = [path for path in directory.glob("step_*") if (path / MANIFEST).is_file()]
    return sorted(step for path in complete if (step := _step_of(path.name)) is not None)


def temporaries(directory: Directory) -> Sequence[Directory]:
    """Return the directories of saves and removals that are under way or were killed."""
    if isinstance(directory, ObjectPath):
        begun = _attempts(directory).keys() - complete_steps(directory)
        return [step_path(directory, step) for step in sorted(begun)]
    named = (path for path in directory.glob("step_*.tmp-*") if _TEMPORARY.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def remove_temporaries(directory: Directory) -> None:
    """Remove what killed runs left. Only the one who holds the lock may."""
    if isinstance(directory, ObjectPath):
        _remove_overtaken(directory)
    else:
        for path in temporaries(directory):
            _remove_unless_pinned(Path(str(path)))
        for path in directory.glob(f"{_PROBE}*"):
            path.unlink(missing_ok=True)


def discard(temporary: Directory) -> None:
    """Remove what a failed save wrote, as far as that can be done."""
    if isinstance(temporary, ObjectPath):
        with suppress(MeshwrightError):  # what the store keeps is removed by the next run
            _remote.discard(temporary.impatient())
    else:
        shutil.rmtree(temporary, ignore_errors=True)


def set_aside(directory: Directory, step: int, why: Aside = "damaged", mark: str = "") -> str:
    """Make what stands where the checkpoint of `step` belongs none, and return what it is called now.

    Args:
      directory: of the checkpoints.
      step: whose checkpoint it is.
      why: it is damaged, or the run goes back to an earlier step.
      mark: eight hexadecimal digits that tell it from others; random ones, if not given.
    """
    path, name = step_path(directory, step), f"{why}-{mark or secrets.token_hex(4)}"
    if isinstance(path, ObjectPath):
        return f"{path.name}/{_remote.set_aside(path, name).name}"
    return path.rename(f"{path}.{name}").name


def set_aside_after(directory: Directory, step: int, mark: str) -> list[int]:
    """Set aside all checkpoints later than `step`, and return their steps.

    The latest is the first: whoever is killed at it leaves the beginning of what there was.
    """
    later = [each for each in complete_steps(directory) if each > step]
    for each in reversed(later):
        set_aside(directory, each, "later", mark)
    if not isinstance(directory, ObjectPath):
        fsync_directory(directory)
    return later


def aside(directory: Directory) -> list[str]:
    """Return what those are called that were set aside."""
    if isinstance(directory, ObjectPath):
        found = directory.glob(f"step_*/{MANIFEST}.*-*")  # one request
        return sorted(f"{path.parent.name}/{path.name}" for path in found)
    return sorted(path.name for why in ASIDE for path in directory.glob(f"step_*.{why}-*"))


def why_aside(name: str) -> str:
    """Return why a checkpoint was set aside that is called so now, as a word for people."""
    return next((why for why in ASIDE if f".{why}-" in name), "")


def remove_step(directory: Directory, step: int) -> None:
    """Remove a checkpoint that is not pinned, so that it is at every moment either complete or not there.

    Whoever is killed at it leaves what `remove_temporaries` removes, or brings back.
    """
    path = step_path(directory, step)
    if (path / PINNED).is_file():
        return
    if isinstance(path, ObjectPath):
        _remote.remove_step(path, unless=path / PINNED)
    else:
        _remove_unless_pinned(path)


def lock(directory: Directory) -> ExitStack:
    """Make the directory, where it is not, and take it for this run; closing what is returned gives it back.

    So does dying. Object stores have no locks that end with their holders. There, of two that save one
    step, one wins.

    Raises:
      UsageError: Another run has it, or it cannot be made or written.
    """
    held = ExitStack()
    if not isinstance(directory, ObjectPath):
        held.callback(hold(directory).close)
    return held


def hold(directory: Path) -> process.Hold:
    """Make a directory of this machine, where it is not, and take it.

    Raises:
      UsageError: Another process has it, or it cannot be made or written.
    """
    with _telling(directory):
        return process.hold(directory / LOCK)


def is_held(directory: Path) -> bool:
    """Return whether a run has `directory` open to save there; False where it is not there."""
    return process.is_held(directory / LOCK)


def probe(directory: Directory) -> None:
    """Make, find and delete a file in the directory, which must be there; an object is written and read.

    The file stays empty, so that a run can be opened, and remove what killed ones left, on a full disk.

    Raises:
      UsageError: Something of this cannot be done.
    """
    if isinstance(directory, ObjectPath):
        _remote.probe(directory)
        return
    with _telling(directory):
        file = directory / f"{_PROBE}{secrets.token_hex(4)}"
        file.touch(exist_ok=False)  # or it would follow a link
        file.unlink()


@contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UsageError(
            f"{directory} cannot be used: {error.strerror}{where}.\n"
            "  All processes of the run must see this one directory, and may write, read and delete there."
        ) from None


def _fresh_name(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.tmp-{secrets.token_hex(4)}")


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
    complete = complete_steps(directory)
    for step, number in _attempts(directory).items():
        if step <= max(complete, default=-1) and number > (step in complete):
            with suppress(CheckpointError):  # what its manifest names is not known: all of it stays
                _remote.remove_leftovers(directory / step_name(step))


def _attempts(directory: ObjectPath) -> Counter[int]:
    """Return how many attempts there are at each step of which there is one."""
    found = (path for path in directory.glob("step_*/*") if _remote.is_attempt(path))
    return Counter(step for path in found if (step := _step_of(path.parent.name)) is not None)


def _step_of(name: str) -> int | None:
    """Return the step that a checkpoint of this name is of; None where it is no such name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None
