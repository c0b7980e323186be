"""Examples that tell how many they are only when they end: they must end in the same batch on all processes.

A process whose examples end early would leave the others waiting for it in the program of the next step. So
each process tells the others in which batch an epoch has ended, and waits for them where its examples end. In
between nothing is exchanged: a process compares what it was told with the number of batches that it has read.
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
examples of that in the batch. Or the end of all: the number of batches alone."""

_LOOK_EVERY_SECONDS = 0.005
_REMARK_AFTER_SECONDS = 10


def ending_together(results: Iterator[T], position: Callable[[T], tuple[int, int]]) -> Iterator[T]:
    """Yield `results`, and check that they, and each epoch of them, end in the same batch on all processes.

    Collective: all processes read the same streams in the same order, on the main thread. Where `results`
    end, this waits for the others.

    Args:
      results: Results of reading one batch each.
      position: Returns the epoch and the number of its samples that are used after a result.

    Raises:
      UsageError: An epoch, or the examples, end elsewhere on another process.
      PeersError: Another process has left.
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
    watch, remark_at = member.watch, time.monotonic() + _REMARK_AFTER_SECONDS
    while not watch.streams.has_ended_everywhere(stream, watch.num_others):
        watch.check()
        time.sleep(_LOOK_EVERY_SECONDS)
        if time.monotonic() > remark_at:
            remark_at = float("inf")
            print(
                "meshwright: the examples have ended here; waiting until those of the other processes end",
                file=sys.stderr,
                flush=True,
            )


@dataclass
class _Stream:
    count: int = 0
    ends: list[End] = field(default_factory=list)
    ends_of_others: dict[int, list[End]] = field(default_factory=dict)


class Streams:
    """The streams that are being read, and their ends on all processes. For any thread."""

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
        """Forget a stream."""
        with self._lock:
            del self._streams[number]

    def read(self, number: int, count: int, end: End | None) -> str | None:
        """Note how many batches of a stream this process has read, and what has ended with the last.

        Returns:
          In what this process, which the caller names behind it, differs from another; None if it does not.
        """
        with self._lock:
            stream = self._streams[number]
            stream.count = count
            if end is not None:
                stream.ends.append(end)
            return _difference(stream)

    def take(self, number: int, process_id: int, end: End) -> str | None:
        """Note an end on another process, and return a text as `read` does."""
        with self._lock:
            if number > self._num_opened:
                self._streams.setdefault(number, _Stream())
            if number not in self._streams:
                return None  # it is closed here
            self._streams[number].ends_of_others.setdefault(process_id, []).append(end)
            return _difference(self._streams[number])

    def has_ended_everywhere(self, number: int, num_others: int) -> bool:
        """Return whether a stream has ended on so many other processes."""
        with self._lock:
            others = self._streams[number].ends_of_others.values()
            return sum(len(ends[-1]) == 1 for ends in others) == num_others


def _difference(stream: _Stream) -> str | None:
    for process_id, ends in stream.ends_of_others.items():
        for i, end in enumerate(ends):
            here = stream.ends[i] if i < len(stream.ends) else None
            is_passed = stream.count > end[0] or (stream.count == end[0] and len(end) > 1)
            if here != end and (here or is_passed):
                what = "the examples end" if len(end) == 1 else "an epoch of the examples ends"
                return f"{what} {_place(end)} on process {process_id}, and {_place(here)}"
    return None


def _place(end: End | None) -> str:
    if end is None:
        return "later"
    if len(end) == 1:
        return f"after batch {end[0]}"
    return f"in batch {end[0]}, which has {end[2]} examples of the next epoch,"
