"""The number of files that a process may open at a time."""

import errno
import resource

from meshwright.errors import UsageError

_FILES, _FILES_A_PROCESS = 20, 3
"""The open files of process 0 of a run: its own, and those for each process."""


def allow_files_of(num_processes: int) -> None:
    """Let this process, and those that it starts, open as many files as process 0 of a run does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, unlimited = _FILES + _FILES_A_PROCESS * num_processes, resource.RLIM_INFINITY
    if hard != unlimited and hard < needed:
        raise UsageError(
            f"process 0 of {num_processes} opens some {needed} files, and may open {hard}: ulimit -n "
            f"{2 * needed}"
        )
    if soft != unlimited and soft < 2 * needed:
        wished = 2 * needed if hard == unlimited else min(2 * needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wished), hard))


def advice(error: OSError) -> str:
    """Return what to try where too many files are open, with a blank behind it; "" after other errors."""
    if error.errno != errno.EMFILE:
        return ""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"This process may open {soft} files at a time: try ulimit -n {max(hard, 2 * soft)}. "
