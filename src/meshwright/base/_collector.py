"""Pauses of Python's garbage collector while many objects are made.

Otherwise it would walk through all objects of JAX again and again. This is the only place that turns it off,
because a process has only one.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

# A signal handler or a finalizer may enter again in the same thread.
_lock = threading.RLock()
_pauses: set[object] = set()
_was_on = False


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Turn the garbage collector off, which halves the time to make tens of thousands of objects.

    It is off for all threads, so pauses must be short. They may nest, and overlap between threads: the
    collector is turned on again after the last pause, if it was on before the first.
    """
    global _was_on
    pause = object()
    # The `try` is around everything, as Ctrl-C may come between any two lines.
    try:
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
