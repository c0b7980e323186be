"""Reading of batches: the function that makes a batch's arrays, and threads that call it ahead.

The order of the results does not depend on the threads. With several processes, results are used only after
all processes have one.
"""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from meshwright.base._internal import PyTree, tree
from meshwright.data._batched import Batched
from meshwright.data._bucketed import Bucketed
from meshwright.data._collate import Collate
from meshwright.data._kinds import takes
from meshwright.data._source import Part, read
from meshwright.errors import ExamplesError
from meshwright.processes import _internal as processes

# The number of results that are under way: the next one, and two more.
READ_AHEAD = 3

T = TypeVar("T")
Label = TypeVar("Label")


def read_ahead(
    tasks: Iterator[tuple[Callable[[], T], Label]], num_threads: int
) -> Generator[tuple[T, Label], None, None]:
    """Yield the result of each task, with its label, in order; up to two more results are read ahead.

    One thread at a time takes the next task, so that `tasks` may be a generator that also reads; it then runs
    the task while other threads take theirs. Without threads each task runs when its result is asked for.
    """
    return _in_threads(tasks, num_threads) if num_threads else ((task(), label) for task, label in tasks)


def _in_threads(
    tasks: Iterator[tuple[Callable[[], T], Label]], num_threads: int
) -> Generator[tuple[T, Label], None, None]:
    taking, results = threading.Lock(), SimpleQueue[Future[tuple[T, Label] | None]]()

    def work() -> None:
        result: Future[tuple[T, Label] | None] = Future()
        try:
            with taking:
                # The lock keeps results in the order of the tasks.
                results.put(result)
                task = next(tasks, None)
            result.set_result(task and (task[0](), task[1]))
        except BaseException as error:
            # The error is raised where the result is read.
            result.set_exception(error)

    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="input")
    try:
        for _ in range(READ_AHEAD):
            threads.submit(work)
        while (labelled := results.get().result()) is not None:
            threads.submit(work)
            yield labelled
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def in_step(results: Iterator[T], about: str, description: Callable[[T], str]) -> Iterator[T]:
    """Yield `results`, each after all processes have one. Otherwise a process with more would wait for
    ever.
    """
    result: list[T] = []

    def next_description() -> dict[str, str]:
        result[:] = itertools.islice(results, 1)
        return {"next": description(result[0]) if result else "none are left"}

    while True:
        processes.compare(about, next_description)
        if not result:
            return
        yield result[0]


Read = Callable[[Sequence[Part]], PyTree]
"""Function that returns this process's rows of one batch as arrays."""


def reader(examples: Any, collate: Collate | None) -> Read:
    """Return the function that reads the parts of a batch of `examples`."""
    takes_length = collate is not None and takes(collate, "length")
    _check(examples, collate, takes_length)

    def read_parts(parts: Sequence[Part]) -> PyTree:
        lengths = [part.length for part in parts if part.length is not None]
        local_parts = [part for part in parts if part.ids.size]
        if not lengths:
            return read(local_parts, collate)
        # A batch at the end of an epoch has parts of several buckets, and is padded to the longest.
        local_parts = [part._replace(length=max(lengths)) for part in local_parts]
        return read(
            local_parts, partial(collate, length=max(lengths)) if collate and takes_length else collate
        )

    return read_parts


def _check(examples: Any, collate: Collate | None, takes_length: bool) -> None:
    if isinstance(examples, Batched) and collate is not None:
        raise ExamplesError(
            "a collate makes a batch of examples, but mw.data.Batched already yields batches.\n"
            "  Leave out the collate, or let the loader call it."
        )
    if isinstance(examples, Bucketed) and not examples.pad and not takes_length:
        raise ExamplesError(
            "mw.data.Bucketed has no `pad`, so that processes cannot agree on the shape of a batch.\n"
            '  Give pad={"tokens": 0}, or a collate that takes `length` and pads to it: '
            "collate(examples, length)."
        )
    if takes_length and not isinstance(examples, Bucketed):
        raise ExamplesError(
            "the collate takes `length`, which only mw.data.Bucketed(examples, lengths, buckets) gives."
        )


def shapes_of(examples: Any, read: Read) -> list[PyTree]:
    """Return rows, as structs, of each shape that batches of `examples` are known to have."""
    if isinstance(examples, Batched):
        return [tree.abstract(batch) for batch in examples.shapes]
    if not isinstance(examples, Bucketed):
        return []
    first = [(int(length), ids[:1]) for length, ids in zip(examples.buckets, examples.members, strict=True)]
    return [tree.abstract(read([Part(examples, ids, length=length)])) for length, ids in first if ids.size]


def without(shapes: Sequence[PyTree], rows: PyTree) -> list[PyTree]:
    """Return the shapes that differ from that of `rows`, whatever their number of rows."""
    return [shape for shape in shapes if shapes_text(shape) != shapes_text(rows)]


def shapes_text(rows: PyTree) -> str:
    """Return the shapes of the arrays of a batch, without the number of rows, as text."""
    named = tree.named_leaves(tree.abstract(rows))
    return ", ".join(f"{name} {x.dtype}{list(x.shape[1:])}" for name, x in named.items())
