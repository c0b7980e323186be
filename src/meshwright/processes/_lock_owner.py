"""The owner of a lock: a process, described so that other processes can find out whether it is alive."""

import json
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from meshwright.processes._proc import namespace, stat_of


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
    """The time at which it locked the directory, for messages."""
    locked: bool
    """True if the process has a lock of the file system, which the system releases when the process ends."""
    token: str = field(default_factory=lambda: secrets.token_hex(4))
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
    return f"{boot} {namespace()}" if boot and namespace() else socket.gethostname()


def this_process(has_lock: bool) -> LockOwner:
    """Return this process as an owner."""
    pid, now = os.getpid(), datetime.now().isoformat(timespec="seconds")
    return LockOwner(pid, socket.gethostname(), this_machine(), _began(pid), now, has_lock)
