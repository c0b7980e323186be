"""The directory in memory that a run has on each host, the processes that share it, and its complete steps.

When a run starts again, a roll call tells which checkpoints all hosts have.
"""

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from meshwright.base._internal import Directory, ObjectPath, parse_object, write_whole
from meshwright.checkpoints import _directory
from meshwright.checkpoints._format._commit import ON_OTHER_HOSTS
from meshwright.checkpoints._format._manifest import read_manifest
from meshwright.errors import InputError, MeshwrightError, UsageError
from meshwright.processes import _internal as processes

RUN_ID = ".memory-id"
"""The file among the checkpoints on disk with a number drawn for the run. Checkpoints in memory with another
number are not of this history: the directory was removed and made again, or the run went back to an earlier
step or saved without memory."""
_RUN = ".run"


@dataclass(frozen=True)
class HostDirectory:
    """The directory of a run in the memory of this host."""

    path: Path
    """The directory, which exists and belongs to this user alone."""
    processes: tuple[int, ...]
    """The processes that see it, in ascending order."""
    attempt: str
    """Eight hexadecimal digits, drawn for this start of the run, the same on all processes."""

    @property
    def is_lead(self) -> bool:
        """True on the first process that sees the directory; it removes files for the others."""
        return self.processes[0] == jax.process_index()

    @property
    def is_only(self) -> bool:
        """True if all processes of the run see the directory."""
        return len(self.processes) == jax.process_count()


def open_host_directory(root: str, checkpoints: Directory, stack: ExitStack) -> HostDirectory:
    """Make the directory of a run on each host, and lock it until `stack` is closed. Collective.

    What another run, or a killed save of this one, has left there is removed.
    """
    drawn = processes.on_lead(lambda: _drawn(checkpoints))
    path = Path(root, f"meshwright-{os.geteuid()}-{drawn['name']}")
    processes.on_all(lambda: _make(path))
    # Nobody removes the marks of another start: a late process of a killed one would take those of the next.
    mark = lambda number: path / f".process-{number}-{drawn['attempt']}"  # noqa: E731
    mine = mark(jax.process_index())
    processes.on_all(lambda: _leave_mark(mine))
    local_processes = processes.on_all(lambda: _marked(mark))
    directory = HostDirectory(path, local_processes, drawn["attempt"])
    processes.on_all(lambda: _take(directory, drawn, stack))
    mine.unlink(missing_ok=True)
    return directory


def renew(directory: HostDirectory, checkpoints: Directory, last_step: int | None) -> None:
    """Remove the checkpoints after a step; those of hosts outside the run become invalid. Collective."""
    run = {"id": processes.on_lead(lambda: _write_id(checkpoints)), "checkpoints": str(checkpoints)}
    processes.on_all(lambda: _empty(directory, run, last_step) if directory.is_lead else None)


def remove(directory: HostDirectory) -> None:
    """Remove the directory. Call it on the first process of the host, when nothing is written any more."""
    shutil.rmtree(directory.path, ignore_errors=True)


def _drawn(checkpoints: Directory) -> dict[str, str]:
    """Return the name, the number and the attempt of the run, which all processes must use alike."""
    # Two paths of one directory give the same name.
    where = str(checkpoints) if isinstance(checkpoints, ObjectPath) else os.path.realpath(checkpoints)
    file = checkpoints / RUN_ID
    try:
        number = file.read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        number = _write_id(checkpoints)
    name = hashlib.sha256(where.encode()).hexdigest()[:16]
    return {"name": name, "id": number, "attempt": secrets.token_hex(4), "checkpoints": where}


def _write_id(checkpoints: Directory) -> str:
    number, file = secrets.token_hex(8), checkpoints / RUN_ID
    if isinstance(file, ObjectPath):
        file.put(number.encode())
    else:
        write_whole(file, number.encode())
    return number


def _make(path: Path) -> None:
    """Make the directory, and check that it is this user's: everybody may write where it lies."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"no checkpoints can be kept in {path.parent}: {error.strerror} ({path}). Give a directory in "
            "memory that exists, InMemory(directory=…)."
        ) from None
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise _removed(path) from None
    # Everybody may write to /dev/shm, so another user could have made the directory or a link to it.
    others = stat.S_IWGRP | stat.S_IWOTH
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & others:
        raise UsageError(
            f"{path} is a link or a file, belongs to somebody else, or others may write there. Expected a "
            "directory that only you may write to. Look at it and remove it, or set InMemory(directory=…)."
        )


def _leave_mark(mark: Path) -> None:
    try:
        mark.touch(mode=0o600)
    except FileNotFoundError:
        raise _removed(mark.parent) from None


def _marked(mark: Callable[[int], Path]) -> tuple[int, ...]:
    """Return the processes whose marks this one sees."""
    visible = tuple(number for number in range(jax.process_count()) if mark(number).exists())
    if jax.process_index() not in visible:
        raise _removed(mark(0).parent)
    return visible


def _removed(path: Path) -> MeshwrightError:
    return MeshwrightError(
        f"{path} was removed while this run started: processes of its last start are still ending. Start the "
        "run again when they are gone."
    )


def _take(directory: HostDirectory, drawn: dict[str, str], stack: ExitStack) -> None:
    if not directory.is_lead:
        return
    stack.callback(_directory.lock_local(directory.path).close)
    run = {key: drawn[key] for key in ("id", "checkpoints")}
    # Another number means another history: checkpoints of a run whose directory was made again.
    if _read_run(directory.path / _RUN).get("id") != run["id"]:
        _empty(directory, run)
    _directory.remove_temporaries(directory.path)


def _read_run(file: Path) -> dict[str, Any]:
    try:
        return parse_object(file.read_bytes())
    except (OSError, ValueError, InputError):
        return {}


def _empty(directory: HostDirectory, run: dict[str, str], last_step: int | None = None) -> None:
    """Remove all checkpoints after a step, and then say whose directory this is from now on."""
    steps = _directory.complete_steps(directory.path)
    staying = [step for step in steps if last_step is not None and step <= last_step]
    remove_steps(directory, sorted({*steps} - {*staying}))
    kept_names = {_directory.step_name(step) for step in staying}
    for path in directory.path.glob("step_*"):
        if path.name not in kept_names:
            shutil.rmtree(path, ignore_errors=True)
    write_whole(directory.path / _RUN, json.dumps(run).encode())


def remove_steps(directory: HostDirectory, steps: Sequence[int]) -> None:
    """Remove checkpoints of this host, the oldest first. Call it on its first process."""
    for step in sorted(steps):
        _directory.remove_step(directory.path, step)


ATTEMPT = "memory_attempt"
"""The key in a manifest's `writer` with the start of the run that saved. Parts of one step that two starts
wrote are not one checkpoint."""


def complete_steps(directory: HostDirectory) -> tuple[list[int], dict[int, str]]:
    """Return the steps of which each host has its part, and the problems of the others, by step. Collective.

    Only manifests and the sizes of files are compared. Reading the data compares its checksums.
    """
    steps = _directory.complete_steps(directory.path)
    parts = {str(step): _part(directory.path / _directory.step_name(step)) for step in steps}
    return completed(processes.gather(parts))


def completed(by_process: Sequence[Mapping[str, str]]) -> tuple[list[int], dict[int, str]]:
    """Return the steps that all processes have, and by step the problem of those that only some have.

    Example:
      >>> from meshwright.checkpoints._host_memory._host_directory import completed
      >>> completed([{"10": "5e0c", "20": "5e0c"}, {"10": "5e0c"}])
      ([10], {20: 'process 1 does not have its part'})
    """
    complete, incomplete = list[int](), dict[int, str]()
    for step in sorted({int(step) for steps in by_process for step in steps}):
        parts = [steps.get(str(step)) for steps in by_process]
        wrong = [
            f"process {number} {'does not have its part' if part is None else f'finds {part[1:]}'}"
            for number, part in enumerate(parts)
            if part is None or part.startswith("!")
        ]
        if not wrong and len(set(parts)) > 1:
            wrong = ["its parts are from different starts of the run"]
        if wrong:
            incomplete[step] = "; ".join(wrong)
        else:
            complete.append(step)
    return complete, incomplete


def _part(path: Path) -> str:
    """Return the start of the run that wrote the checkpoint of a step here, or `!` and a problem."""
    try:
        manifest = read_manifest(path)
        for file in manifest.files:
            data_file = path / file.name
            if file.name != ON_OTHER_HOSTS and (
                not data_file.is_file() or data_file.stat().st_size != file.nbytes
            ):
                return f"!that {data_file} is missing or cut off"
        return str(manifest.writer.get(ATTEMPT))
    except (OSError, InputError) as error:
        return f"!{error}"
