"""Examples of unknown number: a check that they end in the same batch on all processes; see `_streams`."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from meshwright.processes._compare import gather_on_hosts, sharing_errors
from meshwright.processes._member import member

T = TypeVar("T")


def ending_together(results: Iterator[T], position: Callable[[T], tuple[int, int]]) -> Iterator[T]:
    """Yield results, and check that they, and each epoch of them, end in the same batch on all processes.

    Collective: all processes must read the same streams in the same order, on the main thread. At the end of
    the results, this waits for the other processes.
    """
    watch = member.watch
    if watch is None:  # this process is not connected to others
        yield from results
        return
    stream, count, epoch = watch.streams.open(), 0, None
    try:
        with sharing_errors():
            for count, result in enumerate(results, 1):
                after = position(result)
                watch.read(stream, count, [count, *after] if epoch not in (None, after[0]) else None)
                epoch = after[0]
                yield result
            watch.read(stream, count, [count])
            gather_on_hosts("the end of the examples", count)
    finally:
        watch.streams.close(stream)
