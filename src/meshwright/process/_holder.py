"""The process that holds a directory, named so that another one can tell whether it lives."""

import json
import os
import re
import secrets
import socket
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Holder:
    """A process that holds a directory."""

    pid: int
    host: str
    machine: str
    """Names the running system, and in it the namespace that `pid` is of."""
    began: str
    """When the process began, in the kernel's ticks; empty where that is not known. Numbers come again."""
    since: str
    locked: bool
    """True if the holder has a lock, which the system releases when the holder ends."""
    token: str = field(default_factory=lambda: secrets.token_hex(4))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (since {self.since})"


def read_holder(said: str) -> Holder | None:
    """Return whom a text names, or None where it names nobody."""
    try:
        found = Holder(**json.loads(said))
    except (ValueError, TypeError, RecursionError):
        return None
    fits = isinstance(found.pid, int) and found.pid > 0 and re.fullmatch("[0-9a-f]{8}", str(found.token))
    return found if fits and str(found).isprintable() else None


def is_alive(holder: Holder) -> bool:
    """Return whether a process of this machine lives."""
    try:
        os.kill(holder.pid, 0)
    except PermissionError:  # another user's
        pass
    except (ProcessLookupError, OverflowError):
        return False
    return _began(holder.pid) in (holder.began, "")


def _began(pid: int) -> str:
    """Return when a process began; "ended" where only its exit code is left, "" where it is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()  # proc(5): what comes after the name of the program
    return "ended" if fields[0] in "ZX" else fields[19]


def this_machine() -> str:
    """Return a text that processes have in common which see each other's numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def this_process(is_locked: bool) -> Holder:
    """Return what is to be said of this process."""
    pid, now = os.getpid(), datetime.now().isoformat(timespec="seconds")
    return Holder(pid, socket.gethostname(), this_machine(), _began(pid), now, is_locked)
