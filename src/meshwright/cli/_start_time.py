"""The time at which a command's process was launched."""

import os
import time
from contextlib import suppress
from pathlib import Path


def launched_at() -> float:
    """Return the time of launch on the clock `time.monotonic`; the present where the system does not tell.

    Python loads itself before it runs the first line here, which takes seconds from a slow disk.
    """
    now = time.monotonic()
    with suppress(OSError, ValueError, AttributeError, IndexError):
        # The 22nd field is in ticks since boot; the 2nd may contain spaces: proc_pid_stat(5).
        fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    return now
