"""Start the processes of a run on this machine, and start them again after a failure.

The processes find each other by the environment variables JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and
JAX_PROCESS_ID. Meanwhile the launcher reads the board of the run, and so sees processes that cannot speak.
Temporary directories are named `meshwright-launch-MACHINE-PID-BIRTH-…`, after the launcher that owns them.
"""

import contextlib
import hashlib
import os
import random
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshwright.base._internal import local_path
from meshwright.errors import UsageError
from meshwright.launch._precompile import at_lowest_priority, compiling_ahead
from meshwright.launch._process import Child, News, Show
from meshwright.launch._supervise import check, say, supervise
from meshwright.processes._internal import (
    Entry,
    ProcessStatus,
    StallMonitor,
    birth_of,
    look,
    process_identity,
    read_entries,
    verdict,
)

GRACE_SECONDS = 12
"""Default time from SIGTERM to SIGKILL. With the killing it is below 15 s; most platforms allow 30 s."""

_PORTS = range(20_000, 32_768)
_TRIED_PORTS = 100


def launch_local(
    command: Sequence[str],
    num_processes: int,
    *,
    devices_per_process: int | None = None,
    grace_seconds: float = GRACE_SECONDS,
    restarts: int = 0,
    min_processes: int | None = None,
    compile_ahead: bool = True,
    logs: str | Path | None = None,
) -> int:
    """Run `command` in `num_processes` processes that find each other, and return one exit code for all.

    Output appears line by line, each line after the numbers of its processes. The first SIGINT or SIGTERM is
    passed on to the processes; the second kills them. If one process fails, or ends after Ctrl-C, the others
    have `grace_seconds` to end and are then killed. A summary names the process that failed first. A process
    that ended only because another one was gone, or by SIGTERM that was passed on, does not count as failed.
    No process is left running, even if the launcher is killed itself (on Linux). Call it on the main thread.

    With `restarts`, a failure kills the other processes at once and all start again, unless the exit code
    says that the failure would come again (2, 3, 4) or that a person has stopped the run.

    Returns:
      The exit code of the process that failed first; 128 + n if signal n ended it. 6 if a process left with
      0 and the others could not go on without it. Otherwise 130 or 75 if Ctrl-C or SIGTERM stopped the run,
      0 if all processes are done.

    Example:
      >>> import sys
      >>> mw.launch._internal.launch_local([sys.executable, "-c", "pass"], num_processes=2)
      0
    """
    check(grace_seconds, num_processes, restarts, min_processes)
    check_command(command)
    fewest = min_processes or num_processes
    if num_processes > 1:
        say(f"starting {num_processes} processes")
    with scratch() as directory:
        progress = Path(directory, "progress")
        with looking_out(progress, say):
            return supervise(
                partial(
                    _local_spawner, command, devices_per_process, progress, fewest if compile_ahead else None
                ),
                num_processes,
                grace_seconds=grace_seconds,
                restarts=restarts,
                min_processes=min_processes,
                logs=local_path(logs) if logs else None,
                before_restart=partial(_tell_why, progress),
            )


def _tell_why(progress: Path, why: str) -> None:
    """Write the reason of a new start to a file, which the run copies to its log."""
    with contextlib.suppress(OSError):
        progress.with_name(f"{progress.name}.failed").write_text(why, encoding="utf-8")


def check_command(command: Sequence[str]) -> None:
    if not command:
        raise UsageError(
            "launch: there is no program to start. Write it after --: launch local -n 2 -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"launch: {command[0]!r} cannot be started: it is not an executable program in PATH. To start a "
            "Python file, write: -- python FILE"
        )


@dataclass(frozen=True)
class LocalSpawner:
    """Spawner of all processes on this machine, for one start."""

    command: Sequence[str]
    num_processes: int
    devices_per_process: int | None
    progress: Path
    address: str
    """`host:port` at which process 0 will listen."""
    first: int = 0
    """Number of the first process on this machine."""
    only_compiles: bool = False
    """True if processes compile for the cache at the lowest priority, and do nothing else."""
    token: str = ""
    """A secret by which the processes know each other when they meet."""

    def start(self, number: int, news: News, show: Show) -> Child:
        """Start a process."""
        environ = {
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            "JAX_COORDINATOR_ADDRESS": self.address,
            "JAX_NUM_PROCESSES": str(self.num_processes),
            "JAX_PROCESS_ID": str(number),
            "MESHWRIGHT_PROGRESS": str(self.progress),
            "MESHWRIGHT_TOKEN": self.token,
            **_own_devices(number - self.first, self.devices_per_process),
            **({"MESHWRIGHT_ONLY_COMPILE": "1"} if self.only_compiles else {}),
        }
        command = at_lowest_priority(self.command) if self.only_compiles else self.command
        return Child(number, command, environ, news, show)

    def saved(self) -> int | None:
        """Return the newest step that process 0 has reported; None for none."""
        return read_progress(self.progress)


@contextlib.contextmanager
def _local_spawner(
    command: Sequence[str],
    devices_per_process: int | None,
    progress: Path,
    compile_for_at_least: int | None,
    num_processes: int,
    is_stopped: Callable[[], bool],
) -> Iterator[LocalSpawner]:
    """Yield the spawner of one start, and compile ahead for a smaller one."""

    def spawner_for(number: int, *, only_compiles: bool = False) -> LocalSpawner:
        reported = progress.with_name("of-compiling") if only_compiles else progress
        address = f"127.0.0.1:{free_port()}"
        token = secrets.token_hex(16)
        return LocalSpawner(command, number, devices_per_process, reported, address, 0, only_compiles, token)

    with contextlib.ExitStack() as stack:
        if compile_for_at_least is not None and num_processes > compile_for_at_least:
            fewer = partial(spawner_for, only_compiles=True)
            stack.enter_context(compiling_ahead(progress, fewer, num_processes - 1, say))
        yield spawner_for(num_processes)


def read_progress(path: Path) -> int | None:
    """Return the step in a file that `process.report_progress` writes; None if there is none."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def free_port() -> int:
    """Return a port of this machine at which nothing listens."""
    # Systems give the ports above to outgoing connections, Linux from 32,768 on. One of these could be taken
    # before process 0 has started, and listens.
    for port in random.SystemRandom().sample(_PORTS, _TRIED_PORTS):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def _own_devices(index: int, devices_per_process: int | None) -> dict[str, str]:
    if devices_per_process is None:
        return {}
    first = index * devices_per_process
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + devices_per_process)))}


# The longest time between two readings of the board. It is read as often as it is written.
_LOOK_SECONDS = 1.0


@contextlib.contextmanager
def looking_out(progress: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Print the positions of all processes when one stands still for longer than is usual for the run."""
    over = threading.Event()
    thread = threading.Thread(target=_look_out, args=(progress, say, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look_out(progress: Path, say: Callable[[str], None], over: threading.Event) -> None:
    watched, seconds = StallMonitor(), _LOOK_SECONDS
    pointer = progress.with_name(f"{progress.name}.board")
    while not over.wait(seconds):
        with contextlib.suppress(OSError):
            board = Path(pointer.read_text("utf-8"))
            entries = read_entries(board)
            seconds = min((entry.beat_seconds for entry in entries.values()), default=_LOOK_SECONDS)
            if late := watched.late(entries, time.monotonic()):
                observed = look(board)
                if not over.is_set() and any(_is_still(late, process) for process in observed):
                    say(f"the run stands still:\n{verdict(observed)}")


def _is_still(late: Mapping[int, Entry], observed: ProcessStatus) -> bool:
    """Return whether a process that was late has not gone on since."""
    previous = late.get(observed.process)
    return previous is not None and observed.entry is not None and observed.entry.turns == previous.turns


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary directory, after those of this user's launchers that were killed are removed."""
    # The name has a digest of machine and container. Processes of others, which may share the temporary
    # directory, cannot be seen from here, so their directories stay.
    host, pid, birth, namespace = process_identity()
    mine = f"meshwright-launch-{hashlib.sha256(f'{host} {namespace}'.encode()).hexdigest()[:8]}-"
    for path in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        owner = re.match(r"(\d+)-(\d+)-", path.name.removeprefix(mine))
        # The time of birth tells a launcher from a later process with the same number.
        if owner and birth_of(int(owner[1])) != owner[2] and path.lstat().st_uid == os.getuid():
            shutil.rmtree(path, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{mine}{pid}-{birth}-")
