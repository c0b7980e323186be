"""Ending a process that is told to stop before there is anything to save, also in the middle of compiling.

Python calls its handlers of signals between two of its instructions, and XLA may compile for an hour in one.
But Python's own handler in C writes the number of each signal to a file descriptor at once, and a thread that
reads that can end the process: JAX gives Python's lock up while it compiles.

With several processes JAX hears of SIGTERM itself, in C++. In the block that is put aside, and what came
meanwhile is sent again when the block ends.
"""

import ctypes
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshwright.errors import EXIT_AGAIN
from meshwright.process._peers import say_left

_GRACE_SECONDS = 2
"""Seconds in which Python must get its turn, so that the run ends by itself."""
_PRINT_SECONDS = 1
_OVER = b"\0"
_NOTE = "stopped by SIGTERM before the first step: there is nothing new to save. Run the same command again."


@contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """End this process in the block, with exit code 75, soon after SIGTERM.

    For the main thread, where Python handles SIGTERM.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(ours, over), name="meshwright-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(previous)
        theirs.send(_OVER)
        thread.join()
        ours.close()
        theirs.close()


def _watch(heard: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        if signal.SIGTERM in heard.recv(64) and not over.wait(_GRACE_SECONDS):
            _end()


def _end() -> None:
    say_left(EXIT_AGAIN)
    # The main thread may hold the lock of stderr, and a full pipe would wait for ever.
    note = threading.Thread(target=lambda: print(_NOTE, file=sys.stderr, flush=True), daemon=True)
    note.start()
    note.join(_PRINT_SECONDS)
    os._exit(EXIT_AGAIN)


@contextmanager
def replacing_jax_handler(handler: Callable[..., None], is_told: Callable[[], bool]) -> Iterator[None]:
    """Let `handler` hear of SIGTERM in the block instead of JAX, which hears of it afterwards."""
    libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # a `struct sigaction`, and room
    libc.sigaction(signal.SIGTERM, None, kept)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, kept, None)
        if is_told():
            os.kill(os.getpid(), signal.SIGTERM)
