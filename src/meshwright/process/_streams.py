"""Streams of examples of unknown number, which must end in the same batch on all processes.

If the examples of one process ended early, the others would wait for it in the program of the next step. So
each process tells the others in which batch an epoch has ended, and waits for them at the end of its
examples. At other steps nothing is sent: a process compares the ends of the others with the number of batches
that it has read.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from meshwright.process._member import member

T = TypeVar("T")
End = Sequence[int]
"""The end of an epoch: the number of the batch with its last example, the next epoch, and the number of
examples of the next epoch in the batch. The end of a stream is the number of batches alone."""

_POLL_SECONDS = 0.005
_NOTICE_AFTER_SECONDS = 10


def ending_together(results: Iterator[T], position: Callable[[T], tuple[int, int]]) -> Iterator[T]:
    """Yield results, and check that they, and each epoch of them, end in the same batch on all processes.

    Collective: all processes must read the same streams in the same order, on the main thread. At the end of
    the results, this waits for the other processes.

    Args:
      results: One result for each batch that is read.
      position: Returns the epoch after a result, and the number of its examples that have been used.

    Raises:
      UsageError: An epoch, or the examples, end in another batch on another process.
      PeersError: Another process has ended.
    """
    watch = member.watch
    if watch is None:  # this process is not connected to others
        yield from results
        return
    stream, count, epoch = watch.streams.open(), 0, None
    try:
        for count, result in enumerate(results, 1):
            after = position(result)
            watch.read(stream, count, [count, *after] if epoch not in (None, after[0]) else None)
            epoch = after[0]
            yield result
        watch.read(stream, count, [count])
        _wait_for_others(stream)
    finally:
        watch.streams.close(stream)


def _wait_for_others(stream: int) -> None:
    watch, notice_at = member.watch, time.monotonic() + _NOTICE_AFTER_SECONDS
    while not watch.streams.has_ended_everywhere(stream, watch.num_others):
        watch.check()
        time.sleep(_POLL_SECONDS)
        if time.monotonic() > notice_at:
            notice_at = float("inf")
            print(
                "meshwright: the examples of this process have ended; it waits for the ends of the others",
                file=sys.stderr,
                flush=True,
            )


@dataclass
class _Stream:
    count: int = 0
    """The number of batches that this process has read."""
    ends: list[End] = field(default_factory=list)
    """The ends on this process."""
    ends_of_others: dict[int, list[End]] = field(default_factory=dict)
    """The ends on each other process."""


class Streams:
    """The open streams of examples, and their ends on all processes. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_opened = 0
        self._streams: dict[int, _Stream] = {}

    def open(self) -> int:
        """Return the number of a new stream, which is the same on all processes."""
        with self._lock:
            self._num_opened += 1
            self._streams.setdefault(self._num_opened, _Stream())  # it may have ended elsewhere already
            return self._num_opened

    def close(self, number: int) -> None:
        """Remove a stream."""
        with self._lock:
            del self._streams[number]

    def read(self, number: int, count: int, end: End | None) -> str | None:
        """Note how many batches of a stream this process has read, and the end that the last one reached.

        Args:
          number: The number of the stream.
          count: The number of batches.
          end: The end that was reached with the last batch, if any.

        Returns:
          A text that says how this process differs from another, or None. The caller adds "on process 0".
        """
        with self._lock:
            stream = self._streams[number]
            stream.count = count
            if end is not None:
                stream.ends.append(end)
            return _difference(stream)

    def take(self, number: int, process_id: int, end: End) -> str | None:
        """Note an end on another process, and return a text or None as `read` does.

        Args:
          number: The number of the stream.
          process_id: The other process.
          end: The end there.
        """
        with self._lock:
            if number > self._num_opened:
                self._streams.setdefault(number, _Stream())
            if number not in self._streams:
                return None  # it is closed here
            self._streams[number].ends_of_others.setdefault(process_id, []).append(end)
            return _difference(self._streams[number])

    def has_ended_everywhere(self, number: int, num_others: int) -> bool:
        """Return whether a stream has ended on all `num_others` other processes."""
        with self._lock:
            others = self._streams[number].ends_of_others.values()
            return sum(len(ends[-1]) == 1 for ends in others) == num_others


def _difference(stream: _Stream) -> str | None:
    for process_id, ends in stream.ends_of_others.items():
        for i, end in enumerate(ends):
            here = stream.ends[i] if i < len(stream.ends) else None
            is_past = stream.count > end[0] or (stream.count == end[0] and len(end) > 1)
            if here != end and (here or is_past):
                subject = "the examples end" if len(end) == 1 else "an epoch of the examples ends"
                return f"{subject} {_place(end)} on process {process_id}, and {_place(here)}"
    return None


def _place(end: End | None) -> str:
    if end is None:
        return "later"
    if len(end) == 1:
        return f"after batch {end[0]}"
    return f"in batch {end[0]}, which has {end[2]} examples of the next epoch,"
