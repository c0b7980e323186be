"""The output of all processes on one screen: each line after the numbers of the processes that wrote it.

Processes of one run often write the same line. Lines that are equal and arrive within a short time are shown
once. The lines of each process stay in their order.
"""

import contextlib
import re
import sys
import threading
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from meshwright.errors import ranges

# Longest time for which a line waits for equal lines of other processes.
_WAIT_SECONDS = 0.1
_MOST_RANGES = 3
# Lines of C++ that say nothing of the run. Only the files of `--logs` have them.
_UNSHOWN = re.compile(r"\[Gloo\] Rank |\s*@\s+0x|\*\*\* Check failure stack trace: |.*\] SIGTERM caught at ")
# Time and process in the lines of JAX's C++, because of which no two of them would be equal.
_STAMP = re.compile(r"^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ")


class Output:
    """Collects the lines of processes and prints them. As a context, it prints the last lines at its end."""

    def __init__(self, num_processes: int, logs: Path | None = None):
        """Start the thread that prints."""
        self._num_processes, self._logs = num_processes, logs
        self._lock, self._printing = threading.Lock(), threading.Lock()
        self._has_lines, self._is_closed = threading.Event(), threading.Event()
        self._lines = Lines()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> "Output":
        if self._logs:
            self._logs.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._has_lines.set()
        self._thread.join()

    def add(self, process: int, line: str, out: TextIO) -> None:
        """Add a line of a process, to be printed to `out`, which is stdout or stderr."""
        if self._logs:
            with contextlib.suppress(OSError), (self._logs / f"{process}.log").open("ab") as file:
                file.write(f"{line}\n".encode())
        if (text := screen_text(line)) is None:
            return
        with self._lock:
            self._lines.add(process, (text, out))
        self._has_lines.set()

    def flush(self) -> None:
        """Print the lines that have come so far."""
        with self._printing:
            with self._lock:
                lines, self._lines = self._lines, Lines()
            for processes, (line, out) in lines.merged():
                # Keep reading even if our own output is closed: a full pipe would block the processes.
                with contextlib.suppress(OSError, ValueError):
                    out.write(f"[{numbers_text(processes, self._num_processes)}] {line}\n")
            for out in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    out.flush()

    def _print(self) -> None:
        while not self._is_closed.is_set():
            self._has_lines.wait()
            self._is_closed.wait(_WAIT_SECONDS)
            self._has_lines.clear()
            self.flush()
        # Lines came while the earlier ones were printed.
        self.flush()


class Lines:
    """Lines of several processes. Equal ones are merged if the order within each process allows it."""

    def __init__(self) -> None:
        self._merged: list[tuple[list[int], tuple[str, TextIO]]] = []
        # The positions of each line, in order.
        self._positions: dict[tuple[str, TextIO], list[int]] = {}
        # The position of the last line of each process.
        self._reached: dict[int, int] = {}

    def add(self, process: int, line: tuple[str, TextIO]) -> None:
        """Add the next line of a process."""
        positions = self._positions.setdefault(line, [])
        # The first one after its line before. In a traceback the same line of marks comes again and again.
        index = bisect_right(positions, self._reached.get(process, -1))
        if index == len(positions):
            positions.append(len(self._merged))
            self._merged.append(([], line))
        self._merged[positions[index]][0].append(process)
        self._reached[process] = positions[index]

    def merged(self) -> Iterable[tuple[list[int], tuple[str, TextIO]]]:
        """Return the lines in order, each with the processes that wrote it."""
        return self._merged


def screen_text(line: str) -> str | None:
    """Return a line as it is shown on the screen; None if it is not."""
    return None if _UNSHOWN.match(line) else _STAMP.sub(r"\1 ", line).rstrip()


def numbers_text(numbers: Iterable[int], total: int) -> str:
    """Return numbers of processes as text: `0-3, 7`; or how many they are, if that is too long."""
    numbers = list(numbers)
    text = ranges(numbers)
    return f"{len(numbers)} of {total}" if text.count(",") >= _MOST_RANGES else text
