"""The process of a command: its streams, its signals and the name of its program."""

import io
import os
import shlex
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from meshwright.base import _internal as base
from meshwright.errors import EXIT_OF_STOPS, printable

STOPPED = "stopped at once; what was saved before stays saved"


def open_streams() -> None:
    """Let this process print whatever its streams are. Call it before it opens a file that stays open.

    In place of a stream that is closed comes one that goes nowhere: a file of the run would get its number,
    to which libraries in C write. Characters that stdout cannot encode, such as × in ASCII, are escaped, as
    Python does on stderr.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    nowhere = partial(open, os.devnull, "w", encoding="utf-8")
    sys.stdout, sys.stderr = sys.stdout or nowhere(), sys.stderr or nowhere()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def show(text: str) -> None:
    """Print a text and flush it, without the control characters that a terminal would obey.

    Such characters may come from names in somebody else's file.
    """
    base.print_line(printable(text), sys.stdout)


def end_at_once() -> None:
    """From now on, end this process at once on Ctrl-C and SIGTERM. Call it before JAX is imported.

    Python's KeyboardInterrupt is lost where the garbage collector calls JAX, and is another error in a class.
    """
    for number in EXIT_OF_STOPS:
        signal.signal(number, _end)


def ignore_signals() -> None:
    """Let no signal but a second Ctrl-C change how a run ends that has ended, if `end_at_once` was called."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda number, _: signal.signal(number, signal.SIG_DFL))


def program() -> str:
    """Return the shell word that starts this program, so that suggested commands can be pasted."""
    beside_python = Path(sys.executable).with_name("meshwright")
    in_path = shutil.which("meshwright")
    if in_path is not None and Path(in_path).samefile(beside_python):
        return "meshwright"
    nearby = os.path.relpath(beside_python)
    return shlex.quote(str(beside_python) if nearby.startswith("..") else nearby)


def _end(number: int, _: object) -> None:
    os.write(2, f"{STOPPED}\n".encode())  # not `print`: the signal may have come in the middle of one
    os._exit(EXIT_OF_STOPS[number])
