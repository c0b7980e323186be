"""The board of a run: a small file for each process that says where it stands, and what follows from them.

`_entry` is the file, written every second by a thread of the process. `_look` reads all files twice and says
what each process does: of one that is stopped or holds Python's lock, and so writes nothing, Linux tells more
in `/proc`, on its own machine. `_verdict` makes a table of it, and the sentence that follows. `_slow` finds
processes that are slower than the others. Nothing here talks to other processes, and no time of another
machine's clock is used. May import ground rooms only: `launch` reads boards without JAX.
"""

from meshwright.board._entry import Entry, birth_of, board_directory, here, read_entries, write_entry
from meshwright.board._look import WORKS, LookOut, Seen, look
from meshwright.board._slow import (
    INPUT_SECONDS,
    REPORT_SECONDS,
    STEP_SECONDS,
    Slow,
    SlowPeers,
    slow_processes,
)
from meshwright.board._verdict import blamed, verdict

__all__ = [
    "INPUT_SECONDS",
    "REPORT_SECONDS",
    "STEP_SECONDS",
    "WORKS",
    "Entry",
    "LookOut",
    "Seen",
    "Slow",
    "SlowPeers",
    "birth_of",
    "blamed",
    "board_directory",
    "here",
    "look",
    "read_entries",
    "slow_processes",
    "verdict",
    "write_entry",
]
