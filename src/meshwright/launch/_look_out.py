"""The launcher's view of a run that stands still: it reads the board, and so sees processes that cannot
speak.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from meshwright.processes._internal import Entry, LookOut, Seen, look, read_entries, verdict

_SECONDS = 1.0
"""The longest time between two readings of the board. It is read as often as it is written."""


@contextlib.contextmanager
def looking_out(progress: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Show where all processes stand when one of them stands still for longer than is usual for the run."""
    over = threading.Event()
    thread = threading.Thread(target=_look_out, args=(progress, say, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look_out(progress: Path, say: Callable[[str], None], over: threading.Event) -> None:
    watched, seconds = LookOut(), _SECONDS
    pointer = progress.with_name(f"{progress.name}.board")
    while not over.wait(seconds):
        with contextlib.suppress(OSError):
            board = Path(pointer.read_text("utf-8"))
            entries = read_entries(board)
            seconds = min((entry.beat_seconds for entry in entries.values()), default=_SECONDS)
            if late := watched.late(entries, time.monotonic()):
                seen = look(board)
                if not over.is_set() and any(_is_still(late, each) for each in seen):
                    say(f"the run stands still:\n{verdict(seen)}")


def _is_still(late: Mapping[int, Entry], seen: Seen) -> bool:
    """Return whether a process that was late has not gone on since."""
    before = late.get(seen.process)
    return before is not None and seen.entry is not None and seen.entry.turns == before.turns
