"""Reading ahead in threads, with results in an order that does not depend on the threads.

With several processes, results are used only after all processes have one.
"""

import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

from meshwright.processes import _internal as processes

READ_AHEAD = 3  # results: the one asked for and two more

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
                results.put(result)  # in the order of the tasks
                task = next(tasks, None)
            result.set_result(task and (task[0](), task[1]))
        except BaseException as error:  # the reader of the result gets it
            result.set_exception(error)

    threads = ThreadPoolExecutor(num_threads, thread_name_prefix="input")
    try:
        for _ in range(READ_AHEAD):
            threads.submit(work)
        while (done := results.get().result()) is not None:
            threads.submit(work)
            yield done
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
