"""Comparing among threads that have met by a rendezvous: the error that each process gets."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from meshwright.errors import MeshwrightError
from meshwright.launch._local import free_port
from meshwright.processes import _internal as processes

BASE = {"optimizer.learning_rate": "0.01", "seed": "0"}


class Processes:
    """Some exchanges, each in a thread of its own."""

    def __init__(self, number):
        address = f"127.0.0.1:{free_port()}"
        self._threads = ThreadPoolExecutor(number)
        call = lambda i: processes.rendezvous(address, number, i, timeout_seconds=400)
        self.exchanges = list(self._threads.map(call, range(number)))

    def compare(self, said, about=lambda number: "the settings"):
        """Compare what each process says, `{number: text or settings}`, and return the errors' texts."""

        def one(number):
            try:
                processes.compare_over(self.exchanges[number], about(number), said[number])
            except MeshwrightError as error:
                return f"{type(error).__name__}: {error}"

        return list(self._threads.map(one, said))

    def close(self):
        self._threads.shutdown()
        for exchange in self.exchanges:
            exchange.close()


@pytest.fixture
def four():
    processes = Processes(4)
    yield processes
    processes.close()


@pytest.fixture
def two():
    processes = Processes(2)
    yield processes
    processes.close()


def test_processes_that_say_the_same_go_on(four):
    assert four.compare(dict.fromkeys(range(4), BASE)) == [None] * 4
    assert four.compare(dict.fromkeys(range(4), "a program\n" * 1000)) == [None] * 4


def test_all_hear_the_first_difference_and_whose_it_is(four):
    other = BASE | {"optimizer.learning_rate": "0.02", "seed": "1"}
    heard = four.compare({0: BASE, 1: other, 2: BASE, 3: BASE})
    assert heard == [heard[0]] * 4
    assert heard[0].startswith(
        "UsageError: the processes of this run differ in the settings:\n"
        "  optimizer.learning_rate: 0.01 on processes 0, 2-3; 0.02 on process 1\n"
        "  and 1 more: seed\n"
    )


def test_of_two_processes_it_is_a_short_sentence(two):
    heard = two.compare({0: BASE, 1: {"optimizer.learning_rate": "0.02", "seed": "0"}})
    assert "\n  optimizer.learning_rate: 0.01 on process 0, 0.02 on 1\n" in heard[1]


def test_what_one_does_not_say_is_a_difference(two):
    heard = two.compare({0: BASE, 1: BASE | {"mesh": "data=2"}})
    assert "\n  mesh: nothing on process 0, data=2 on 1\n" in heard[0]


def test_settings_in_another_order_are_a_difference(two):
    """Evaluations are made in the order of their settings, each by all processes together."""
    heard = two.compare({0: {"a": "1", "b": "2", "seed": "0"}, 1: {"b": "2", "a": "1", "seed": "0"}})
    assert heard == [heard[0]] * 2
    assert "\n  the order of the settings: a, b, seed on process 0, b, a, seed on 1\n" in heard[0]


def test_texts_that_differ_in_white_space_only_are_a_difference(two):
    heard = two.compare({0: "a program", 1: "a program "})
    assert "\n  white space only\n" in heard[1]


def test_of_a_long_line_so_much_is_shown_as_differs(two):
    usual, other = (f'%cst = stablehlo.constant dense<"0x{"F0" * 5000}{x}{"F0" * 5000}">' for x in "01")
    heard = two.compare({0: f"module {{\n{usual}\n}}", 1: f"module {{\n{other}\n}}"})
    assert "\n  line 2: " in heard[0]
    assert "(sha256 " in heard[0]
    assert len(heard[0]) < 1000


def test_processes_that_do_different_things_are_told_so(two):
    heard = two.compare({0: BASE, 1: BASE}, about=lambda number: ["the step", "an evaluation"][number])
    assert heard == [heard[0]] * 2
    assert "process 0 at the step, process 1 at an evaluation" in heard[0]


@pytest.mark.parametrize("failed", [0, 2])
def test_an_error_on_one_ends_the_others_and_then_all_can_go_on(four, failed):
    four.exchanges[failed].send_failure({"kind": "InputError", "message": "no such file"})
    others = [i for i in range(4) if i != failed]
    assert four.compare(dict.fromkeys(others, BASE)) == [f"InputError: process {failed}: no such file"] * 3
    assert four.compare(dict.fromkeys(range(4), BASE)) == [None] * 4


def test_a_bug_on_process_0_reaches_the_others(two):
    def reduce(number):
        try:
            two.exchanges[number].all_reduce("the settings", number, lambda values: values[9])
        except (IndexError, MeshwrightError) as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(2) as threads:
        errors = list(threads.map(reduce, range(2)))
    assert errors == [
        "IndexError: list index out of range",
        "MeshwrightError: IndexError: list index out of range",
    ]


@pytest.mark.parametrize("left", [0, 3])
def test_one_that_left_is_named_at_once(four, left):
    four.exchanges[left].close()
    heard = four.compare({i: BASE for i in range(4) if i != left})
    assert all(each.startswith(f"PeersError: process {left} has ended") for each in heard)
