"""The processes of this machine, as Linux tells of them in `/proc`; see proc_pid_stat(5)."""

import contextlib
import os
import socket
import time
from pathlib import Path


def here() -> tuple[str, int, str, str]:
    """Return the host, number, birth and namespace of this process."""
    return socket.gethostname(), os.getpid(), birth_of(os.getpid()) or "", namespace()


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


def launched_at() -> float:
    """Return when this process was launched, on the clock `time.monotonic`; the present if it is not known.

    Python loads itself before it runs the first line here, which takes seconds from a slow disk.
    """
    now = time.monotonic()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        since_boot = int(birth_of(os.getpid()) or "") / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    return now
