"""Streams of examples of unknown number, which must end in the same batch on all processes.

If the examples of one process ended early, the others would wait for it in the program of the next step. So
each process tells process 0 in which batch an epoch has ended, and process 0 tells all others of its own.
Each waits for the others at the end of its examples. At other steps nothing is sent: process 0 compares the
ends of the others with the number of batches that it has read, and each of them those of process 0.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

End = Sequence[int]
"""The end of an epoch: the number of the batch with its last example, the next epoch, and the number of
examples of the next epoch in the batch. The end of a stream is the number of batches alone."""


@dataclass
class _Stream:
    count: int = 0
    """The number of batches that this process has read."""
    ends: list[End] = field(default_factory=list)
    """The ends on this process."""
    ends_of_others: dict[int, dict[int, End]] = field(default_factory=dict)
    """The ends on each other process that are not yet compared, by their numbers."""
    num_taken: Counter[int] = field(default_factory=Counter)
    """The number of ends on each other process so far."""


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
            # The stream may have ended elsewhere already.
            self._streams.setdefault(self._num_opened, _Stream())
            return self._num_opened

    def close(self, number: int) -> None:
        """Remove a stream."""
        with self._lock:
            del self._streams[number]

    def read(self, number: int, count: int, end: End | None) -> str | None:
        """Note how many batches of a stream this process has read, and the end that the last one reached.

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
        """Record that another process's stream ended. Returns a text if the streams differ, else None."""
        with self._lock:
            if number > self._num_opened:
                self._streams.setdefault(number, _Stream())
            if number not in self._streams:
                return None  # it is closed here
            stream = self._streams[number]
            stream.ends_of_others.setdefault(process_id, {})[stream.num_taken[process_id]] = end
            stream.num_taken[process_id] += 1
            return _difference(stream)


def _difference(stream: _Stream) -> str | None:
    """Return the difference of this process and another, or None. Ends that are equal are forgotten."""
    for process_id, ends in list(stream.ends_of_others.items()):
        for i, end in list(ends.items()):
            own_end = stream.ends[i] if i < len(stream.ends) else None
            is_past = stream.count > end[0] or (stream.count == end[0] and len(end) > 1)
            if own_end == end:
                del ends[i]
            elif own_end or is_past:
                subject = "the examples end" if len(end) == 1 else "an epoch of the examples ends"
                return f"{subject} {_position(end)} on process {process_id}, and {_position(own_end)}"
        if not ends:
            del stream.ends_of_others[process_id]
    return None


def _position(end: End | None) -> str:
    if end is None:
        return "later"
    if len(end) == 1:
        return f"after batch {end[0]}"
    return f"in batch {end[0]}, which has {end[2]} examples of the next epoch,"
