"""When the process of a command was launched."""

import os
import time
from contextlib import suppress
from pathlib import Path


def launched_at() -> float:
    """Return when this process was launched, on the clock `time.monotonic`: now, where nothing says so.

    Before Python runs our first line it has loaded itself, which takes seconds from a slow disk.
    """
    now = time.monotonic()
    with suppress(OSError, ValueError, AttributeError, IndexError):
        # The 22nd field, in ticks since the machine was started; the 2nd may hold blanks: proc_pid_stat(5).
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    return now
