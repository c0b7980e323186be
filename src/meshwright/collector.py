"""Python's garbage collector, kept from walking through all that JAX holds while many objects are made.

This is the one place that turns it off, as it is one for the whole process.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

_lock = threading.RLock()  # the same thread may come back, by a signal's handler or a finalizer
_pauses: set[object] = set()
_was_on = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Make tens of thousands of objects in half the time. For moments only: it is off for all threads.

    Pauses may nest and overlap, also those of several threads: the collector is on again after the last one,
    if it was on before the first.
    """
    global _was_on
    pause = object()
    try:  # around all of it: an interruption may come between any two lines
        with _lock:
            if not _pauses:
                _was_on = gc.isenabled()
            _pauses.add(pause)
            gc.disable()
        yield
    finally:
        with _lock:
            _pauses.discard(pause)
            if _was_on and not _pauses:
                _was_on = False
                gc.enable()
