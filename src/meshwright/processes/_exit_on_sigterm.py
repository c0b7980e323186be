"""Ends a process on SIGTERM before the first step, when there is nothing to save, even while XLA compiles.

Python calls signal handlers between two of its instructions, and XLA may compile for an hour in one. But
Python's own handler in C writes the number of each signal to a file descriptor at once (the wake-up
descriptor). A thread that reads it can end the process, because JAX releases Python's lock while it compiles.

With several processes, JAX has its own handler of SIGTERM, in C++. It is replaced in the block; a signal that
came in the block is sent again when the block ends.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshwright.base._internal import print_line
from meshwright.errors import EXIT_AGAIN
from meshwright.processes._peers import announce_exit

_GRACE_SECONDS = 2
"""The seconds that the main thread has to end the run itself."""
_PRINT_SECONDS = 1
_OVER = b"\0"
"""Wakes the thread at the end of the block; no signal has the number 0."""
_NOTE = "stopped by SIGTERM before the first step: there is nothing new to save. Run the same command again."


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """End this process with exit code 75, soon after SIGTERM in the block.

    Call it on the main thread, with a Python handler of SIGTERM.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(reader, over), name="meshwright-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(previous)
        writer.send(_OVER)
        thread.join()
        reader.close()
        writer.close()


def _watch(reader: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        if signal.SIGTERM in reader.recv(64) and not over.wait(_GRACE_SECONDS):
            _end()


def _end() -> None:
    announce_exit(EXIT_AGAIN)
    # Print on a thread: the main thread may hold the lock of stderr, and a full pipe would block forever.
    note = threading.Thread(target=lambda: print_line(_NOTE, sys.stderr), daemon=True)
    note.start()
    note.join(_PRINT_SECONDS)
    os._exit(EXIT_AGAIN)


@contextmanager
def replacing_jax_handler(handler: Callable[..., None], is_terminated: Callable[[], bool]) -> Iterator[None]:
    """Replace JAX's handler of SIGTERM in the block."""
    libc, previous = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # larger than a `struct sigaction`
    libc.sigaction(signal.SIGTERM, None, previous)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, previous, None)
        if is_terminated():
            os.kill(os.getpid(), signal.SIGTERM)
