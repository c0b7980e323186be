"""Processes of this machine by `/proc` (see proc_pid_stat(5)), and the owner of a lock.

The owner is described so that other processes can find out whether it is alive.
"""

import contextlib
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path


def process_identity() -> tuple[str, int, str, str]:
    """Return the host, number, birth and namespace of this process."""
    return os.uname().nodename, os.getpid(), birth_of(os.getpid()) or "", namespace()


def namespace() -> str:
    """Return the namespace of this process's number; "" where the system has none."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def birth_of(pid: int) -> str | None:
    """Return when a process of this machine was born, in ticks since boot; None if it is gone."""
    fields = stat_of(pid)
    return fields[19] if fields else None


def state_of(pid: int) -> str | None:
    """Return the state of a process of this machine as a letter, such as T for a stopped one."""
    fields = stat_of(pid)
    return fields[0] if fields else None


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` after the name, which may contain spaces; None if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return None


def process_start_time() -> float:
    """Return when this process was launched, on the clock `time.monotonic`; the present if it is not known.

    Python loads itself before it runs the first line of ours, which takes seconds from a slow disk.
    """
    monotonic_now = time.monotonic()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        since_boot = int(birth_of(os.getpid()) or "") / os.sysconf("SC_CLK_TCK")
        return monotonic_now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    return monotonic_now


@dataclass(frozen=True)
class LockOwner:
    """A process that has locked a directory."""

    pid: int
    """The process id."""
    host: str
    """The host name, for messages."""
    machine: str
    """A text that identifies the running system and its namespace of process ids."""
    began: str
    """The start time of the process in the kernel's ticks, or "" if it is not known. The system uses process
    ids again."""
    since: str
    """The time at which the process locked the directory, for messages."""
    locked: bool
    """True if the process has a lock of the file system, which the system releases when the process ends."""
    token: str = field(default_factory=lambda: os.urandom(4).hex())
    """A random text that identifies this lock."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


def read_owner(text: str) -> LockOwner | None:
    """Return the owner that the text of an owner file names, or None if the text is damaged or empty."""
    try:
        owner = LockOwner(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    is_valid = isinstance(owner.pid, int) and owner.pid > 0 and re.fullmatch("[0-9a-f]{8}", str(owner.token))
    return owner if is_valid and str(owner).isprintable() else None


def is_alive(owner: LockOwner) -> bool:
    """Return whether an owner on this machine is alive."""
    try:
        os.kill(owner.pid, 0)
    except PermissionError:  # a process of another user
        pass
    except (ProcessLookupError, OverflowError):
        return False
    return _began(owner.pid) in (owner.began, "")


def _began(pid: int) -> str:
    """Return the start time of a process, "ended" for one that has ended, or "" if it is not known."""
    if (fields := stat_of(pid)) is None:
        return ""
    return "ended" if fields[0] in "ZX" else fields[19]


def this_machine() -> str:
    """Return a text that is the same for all processes that share one namespace of process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    except OSError:
        boot = ""
    return f"{boot} {namespace()}" if boot and namespace() else os.uname().nodename


def this_process(has_lock: bool) -> LockOwner:
    """Return this process as an owner."""
    pid, locked_since = os.getpid(), time.strftime("%Y-%m-%dT%H:%M:%S")
    return LockOwner(pid, os.uname().nodename, this_machine(), _began(pid), locked_since, has_lock)
