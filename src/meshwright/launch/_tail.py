"""The output of a SLURM job on this screen, as if its processes ran here: numbered, and equal lines once."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_CTRL_C, EXIT_FAILED
from meshwright.launch._output import Output

_LABEL = re.compile(r" *(\d+): (.*)", re.DOTALL)
"""What `srun --label` writes: the number of the task, and its line."""
_OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")
)
_POLL_SECONDS = 1.0


def tail_slurm(number: str, num_processes: int) -> int:
    """Show the output of a job of SLURM until the job is over, also over its restarts; return its exit code.

    The files of the output must be visible here. Ctrl-C ends the showing, not the job.
    """
    files: dict[str, _File] = {}
    try:
        with Output(num_processes) as output:
            while True:
                job = _job(number)
                for name in {job[key] for key in ("StdOut", "StdErr") if key in job}:
                    for line in files.setdefault(name, _File(Path(name))).lines():
                        _show(line, output)
                if job.get("JobState", "") in _OVER:
                    return _exit_code(job)
                time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print(f"job {number} goes on; to end it: scancel {number}", file=sys.stderr)
        return EXIT_CTRL_C


def _show(line: str, output: Output) -> None:
    if labelled := _LABEL.fullmatch(line):
        output.add(int(labelled[1]), labelled[2], sys.stdout)
    else:  # of the script
        output.flush()
        print_line(line, sys.stderr)


class _File:
    """A file that grows, or is not there yet."""

    def __init__(self, path: Path):
        self._path, self._read, self._rest = path, 0, b""

    def lines(self) -> Iterator[str]:
        """Return the whole lines that are new."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


def _job(number: str) -> Mapping[str, str]:
    """Return what SLURM knows of a job, by name; of one that it has forgotten, that it is over."""
    done = subprocess.run(
        ["scontrol", "-o", "show", "job", number], stdin=subprocess.DEVNULL, capture_output=True
    )
    if b"Invalid job id" in done.stderr:
        return {"JobState": "COMPLETED", "ExitCode": f"{EXIT_FAILED}:0"}
    words = done.stdout.decode(errors="replace").split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _exit_code(job: Mapping[str, str]) -> int:
    """Return the exit code of a job that is over; 128 + n if signal n ended it."""
    code, _, signal = job.get("ExitCode", "0:0").partition(":")
    if int(signal or 0):
        return 128 + int(signal)
    return int(code) or (0 if job["JobState"] == "COMPLETED" else EXIT_FAILED)
