import threading

import pytest

from meshwright.data._reading import READ_AHEAD, read_ahead


def test_results_come_in_the_order_of_the_tasks_not_of_their_ends():
    second_done = threading.Event()
    tasks = iter([(lambda: second_done.wait(timeout=60), 1), (lambda: second_done.set() or True, 2)])
    assert list(read_ahead(tasks, 2)) == [(True, 1), (True, 2)]


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_tasks_may_come_from_a_generator_that_reads(num_threads):
    """Two threads in one generator are an error of Python's."""
    tasks = ((lambda i=i: i * i, i) for i in range(300))
    assert list(read_ahead(tasks, num_threads)) == [(i * i, i) for i in range(300)]


def test_no_more_is_read_ahead_than_said():
    taken = []
    results = read_ahead(((lambda: None, i) for i in range(100) if taken.append(i) is None), 1)
    for _ in range(5):
        next(results)
    results.close()
    assert len(taken) <= 5 + READ_AHEAD


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_is_raised_in_its_turn(num_threads):
    tasks = ((lambda i=i: 1 // (2 - i), i) for i in range(5))
    results = read_ahead(tasks, num_threads)
    assert [next(results), next(results)] == [(0, 0), (1, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)
