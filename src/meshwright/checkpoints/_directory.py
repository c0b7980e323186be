"""A directory of checkpoints: names of its entries, complete steps, locking and removal.

runs/text/checkpoints/
  step_00000800/                  a checkpoint: it has a manifest, or has lost it and is damaged
    PINNED                        a checkpoint with this file is never removed
  step_00001200.tmp-5e0c1a97/     is being written or removed, or was left by a killed run
  step_00001600.damaged-0b8e55d2/ a damaged checkpoint, set aside for inspection
  step_00002000.later-91d2b7f0/   set aside when the run went back to an earlier step
  .lock, .lock.holder             locked by process 0 of the run that saves here; the second file names it

_remote.py has the differences in an object store.
"""

import functools
import logging
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

from meshwright.base._internal import Directory, ObjectPath, fsync_directory, make_directory
from meshwright.checkpoints import _remote
from meshwright.checkpoints._format._manifest import MANIFEST
from meshwright.errors import CheckpointError, MeshwrightError, UsageError, listed
from meshwright.processes import _internal as processes

log = logging.getLogger("meshwright")

LOCK = ".lock"
PINNED = "PINNED"
"""The file that keeps a checkpoint from being removed."""
Aside = Literal["damaged", "later"]
ASIDE = get_args(Aside)
"""The reasons for setting a checkpoint aside, which become part of its name."""
_PROBE = ".probe-"

_STEP = re.compile(r"step_([0-9]{8,})")
# The data files of Meshwright: other programs use names like `step_00000800` as well.
_DATA = re.compile(r"data-.*\.zarr\.zip")
_TEMPORARY = re.compile(r"step_[0-9]{8,}\.tmp-[0-9a-f]{8}")


def of_checkpoints(directory: Directory) -> Directory:
    """Return `directory`, if checkpoints can be saved there."""
    if isinstance(directory, ObjectPath) and not directory.store.creates:
        raise UsageError(
            f"{directory} cannot hold checkpoints: two runs could save the same step there. Expected "
            "s3://, gs:// or az://bucket/path, or a local directory.\n  To keep them outside the run's "
            "directory, set save.directory."
        )
    return directory


def step_name(step: int) -> str:
    """Return the name of a step's directory, `step_00000800`."""
    return f"step_{step:08d}"


def step_path(directory: Directory, step: int) -> Directory:
    """Return the path of a step's directory, whether it exists or not."""
    return directory / step_name(step)


def temporary_path(directory: Directory, step: int) -> Directory:
    """Return a new temporary path for a checkpoint of `step` that is being written or removed."""
    final = step_path(directory, step)
    return _remote.new_attempt(final) if isinstance(final, ObjectPath) else _fresh_name(final)


def final_path(temporary: Directory) -> Directory:
    """Return the path of the checkpoint that is being written into `temporary`."""
    if isinstance(temporary, ObjectPath):
        return temporary.parent
    return temporary.with_name(temporary.name.partition(".")[0])


def complete_steps(directory: Directory) -> list[int]:
    """Return the steps with a complete checkpoint, in ascending order.

    Of `saved_steps`, those without a manifest are left out with a warning; if all lack it, all are returned.
    """
    saved = saved_steps(directory)
    lost = [step_name(step) for step, has_manifest in saved.items() if not has_manifest]
    if not lost or len(lost) == len(saved):
        return list(saved)
    _warn(
        f"{listed(lost)} in {directory} left out, as there is no {MANIFEST}, which each checkpoint has. If "
        "no copy of the run is in progress, restore these from a backup, or move them away."
    )
    return [step for step, has_manifest in saved.items() if has_manifest]


# Each message is logged once, as a run lists the steps at each save.
_warn = functools.cache(log.warning)


def saved_steps(directory: Directory) -> dict[int, bool]:
    """Return, for each step whose checkpoint was completed, in ascending order, whether it has its manifest.

    A local directory gets its step's name when complete: without a manifest it is damaged, or half a copy.
    """
    if isinstance(directory, ObjectPath):
        completed = {path.parent.name: True for path in directory.glob(f"step_*/{MANIFEST}")}  # one request
    else:
        named = (path for path in directory.glob("step_*") if _STEP.fullmatch(path.name))
        has_manifest = ((path, (path / MANIFEST).is_file()) for path in named)
        completed = {
            path.name: is_complete
            for path, is_complete in has_manifest
            if is_complete or _has_lost_manifest(path)
        }
    steps = ((_step_of(name), is_complete) for name, is_complete in completed.items())
    return dict(sorted((step, is_complete) for step, is_complete in steps if step is not None))


def _has_lost_manifest(path: Path) -> bool:
    """Return whether an entry with a step's name, but without a manifest, was a checkpoint of Meshwright.

    Then it has data files, or nothing is left: other programs, which use such names too, have other files.
    """
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        # The directory has just been removed, or is a link to one that was.
        return path.is_symlink()
    return not names or any(_DATA.fullmatch(name) for name in names)


def temporaries(directory: Directory) -> Sequence[Directory]:
    """Return the directories of saves and removals that are in progress or were killed."""
    if isinstance(directory, ObjectPath):
        begun = _attempts(directory.glob("step_*/*")).keys() - complete_steps(directory)
        return [step_path(directory, step) for step in sorted(begun)]
    named = (path for path in directory.glob("step_*.tmp-*") if _TEMPORARY.fullmatch(path.name))
    return sorted(path for path in named if path.is_dir())


def remove_temporaries(directory: Directory, also: Collection[str] = ()) -> None:
    """Remove the temporary directories of killed runs. Call it only with the lock held."""
    if isinstance(directory, ObjectPath):
        _remove_overtaken(directory, also)
    else:
        for path in temporaries(directory):
            _remove_unless_pinned(Path(str(path)))
        for path in directory.glob(".*"):
            # These are the probe files of killed runs, and files that the caller names.
            if path.name.startswith(_PROBE) or path.name in also:
                path.unlink(missing_ok=True)


def discard(temporary: Directory) -> None:
    """Remove the files of a failed save, as far as possible."""
    if isinstance(temporary, ObjectPath):
        # The next run removes the rest.
        with suppress(MeshwrightError):
            _remote.discard(temporary.impatient())
    else:
        shutil.rmtree(temporary, ignore_errors=True)


def set_aside(directory: Directory, step: int, why: Aside = "damaged", mark: str = "") -> str:
    """Rename a checkpoint so that it no longer counts as one, and return its new name."""
    path, name = step_path(directory, step), f"{why}-{mark or secrets.token_hex(4)}"
    if isinstance(path, ObjectPath):
        # A store has no renames, so only the manifest gets another name there.
        return f"{path.name}/{_remote.set_aside(path, name).name}"
    return path.rename(f"{path}.{name}").name


def set_aside_after(directory: Directory, step: int, mark: str) -> list[int]:
    """Set aside all checkpoints after a step, and return their steps.

    The latest one goes first, so that a killed process leaves a contiguous beginning.
    """
    later = [later_step for later_step in saved_steps(directory) if later_step > step]
    for later_step in reversed(later):
        set_aside(directory, later_step, "later", mark)
    if not isinstance(directory, ObjectPath):
        fsync_directory(directory)
    return later


def set_aside_names(directory: Directory) -> list[str]:
    """Return the names of the checkpoints that were set aside."""
    if isinstance(directory, ObjectPath):
        manifests = directory.glob(f"step_*/{MANIFEST}.*-*")  # one request
        return sorted(f"{path.parent.name}/{path.name}" for path in manifests)
    return sorted(path.name for why in ASIDE for path in directory.glob(f"step_*.{why}-*"))


def reason_set_aside(name: str) -> str:
    """Return the reason in the name of a checkpoint that was set aside: "damaged" or "later"; "" for
    others.
    """
    return next((why for why in ASIDE if f".{why}-" in name), "")


def remove_step(directory: Directory, step: int) -> None:
    """Remove a checkpoint unless it is pinned. At every moment it is either complete or gone.

    If the process is killed, `remove_temporaries` finishes the removal, or restores a pinned checkpoint.
    """
    path = step_path(directory, step)
    if (path / PINNED).is_file():
        return
    if isinstance(path, ObjectPath):
        _remote.remove_step(path, unless=path / PINNED)
    else:
        _remove_unless_pinned(path)


def lock(directory: Directory) -> ExitStack:
    """Create the directory if needed, and lock it until the result is closed or the process ends.

    Object stores have no locks that end with their process, so nothing is locked there: if two runs save the
    same step, one succeeds.
    """
    stack = ExitStack()
    if not isinstance(directory, ObjectPath):
        stack.callback(lock_local(directory).close)
    return stack


def lock_local(directory: Path) -> processes.DirectoryLock:
    """Create a local directory if needed, and lock it."""
    with _errors_naming_directory(directory):
        make_directory(directory)
        return processes.lock_directory(directory / LOCK)


def is_locked(directory: Path) -> bool:
    """Return whether a run has the directory open for saving; False if the directory does not exist."""
    return processes.is_locked(directory / LOCK)


def probe(directory: Directory) -> None:
    """Check that files can be created and deleted in an existing directory.

    The test file is empty, so that on a full disk a run can still be opened, and remove old files.
    """
    if isinstance(directory, ObjectPath):
        _remote.probe(directory)
        return
    with _errors_naming_directory(directory):
        file = directory / f"{_PROBE}{secrets.token_hex(4)}"
        # With `exist_ok`, `touch` would follow a link.
        file.touch(exist_ok=False)
        file.unlink()


@contextmanager
def _errors_naming_directory(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UsageError(
            f"{directory} cannot be used: {error.strerror}{where}.\n"
            "  All processes of the run must see this directory, and may write, read and delete there."
        ) from None


def _fresh_name(path: Path) -> Path:
    return path.with_name(f"{path.name.partition('.')[0]}.tmp-{secrets.token_hex(4)}")


def _remove_unless_pinned(path: Path) -> None:
    """Remove a step's directory; if it holds a pinned checkpoint, give it its proper name again instead.

    It first gets a new name that only this call knows. So nobody can pin it after the check, and a process of
    a killed run that still writes cannot create more files in it.

    This name is flushed before its manifest is removed, and that before the data are: otherwise a power cut
    could undo one but not the other, and leave a directory that looks like a checkpoint, intact or damaged.
    """
    doomed = path.rename(_fresh_name(path))
    fsync_directory(doomed.parent)
    if (doomed / PINNED).is_file() and (doomed / MANIFEST).is_file():
        # Somebody pinned the checkpoint before it was renamed.
        doomed.rename(str(final_path(doomed)))
        return
    # From here on, the checkpoint must not be restored.
    (doomed / MANIFEST).unlink(missing_ok=True)
    fsync_directory(doomed)
    shutil.rmtree(doomed)


def _remove_overtaken(directory: ObjectPath, also: Collection[str]) -> None:
    entries = list(directory.glob("step_*/*", f"{_PROBE}*", *also))  # one request
    for path in entries:
        # All processes have finished with their probe files.
        if path.name in also or path.name.startswith(_PROBE):
            path.unlink()
    manifests = (path for path in entries if path.name == MANIFEST)
    complete = {step for path in manifests if (step := _step_of(path.parent.name)) is not None}
    for step, number in _attempts(entries).items():
        # Objects at later steps may belong to another run that is still saving.
        if step <= max(complete, default=-1) and number > (step in complete):
            # A manifest that cannot be read: keep everything.
            with suppress(CheckpointError):
                _remote.remove_leftovers(directory / step_name(step))


def _attempts(paths: Iterable[ObjectPath]) -> Counter[int]:
    """Return the number of attempts at each step, given the paths directly below all steps."""
    attempts = (path for path in paths if _remote.is_attempt(path))
    return Counter(step for path in attempts if (step := _step_of(path.parent.name)) is not None)


def _step_of(name: str) -> int | None:
    """Return the step in the name of a checkpoint; None if it is another name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and name == step_name(int(match[1])) else None
