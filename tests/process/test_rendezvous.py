"""The rendezvous among threads: the error that each process gets when something is wrong."""

import contextlib
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventually import eventually
from meshwright import process
from meshwright.errors import PeersError
from meshwright.launch._local import free_port


@pytest.fixture
def address():
    return f"127.0.0.1:{free_port()}"


def answers(address, *calls, timeout_seconds=400):
    """What each of `calls`, (process id, number of processes), hears: an error's text, or None."""

    def one(call):
        process_id, number = call
        try:
            process.rendezvous(address, number, process_id, timeout_seconds=timeout_seconds).close()
        except PeersError as error:
            return str(error)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


def test_all_go_when_all_are_there(address):
    assert answers(address, (2, 4), (0, 4), (3, 4), (1, 4)) == [None] * 4


@pytest.mark.slow
def test_everyone_who_came_hears_who_did_not(address):
    heard = answers(address, (0, 8), (1, 8), (6, 8), timeout_seconds=3)
    assert heard == [heard[0]] * 3
    assert heard[0].startswith(f"3 of 8 processes arrived at {address} within 3 s; missing: 2-5, 7.")


def test_without_process_0_the_others_say_so(address):
    heard = answers(address, (1, 2), timeout_seconds=0.3)
    assert heard[0].startswith(f"process 1 of 2 could not reach process 0 at {address} within 0.3 s")


def test_all_hear_that_two_have_one_number(address):
    heard = answers(address, (0, 4), (1, 4), (1, 4))
    assert heard == [heard[0]] * 3
    assert heard[0].startswith("two processes were both started as process 1, on 127.0.0.1 ")


def test_all_hear_that_they_were_told_different_numbers_of_processes(address):
    heard = answers(address, (0, 2), (1, 3))
    assert heard == [heard[0]] * 2
    assert heard[0].startswith("process 1 was started as one of 3 processes, process 0 as one of 2.")


def test_a_taken_port_is_named(address):
    with socket.create_server(("127.0.0.1", int(address.split(":")[1]))):
        assert f"process 0 cannot listen at {address}: Address already in use." in answers(address, (0, 2))[0]


def test_strangers_and_those_who_left_do_not_count(address):
    hello = json.dumps({"process": 1, "of": 3}).encode() + b"\n"

    def visited(line):
        with contextlib.suppress(ConnectionRefusedError), connected() as visitor:
            visitor.sendall(line)
            return True

    def connected():
        return socket.create_connection(("127.0.0.1", int(address.split(":")[1])))

    with ThreadPoolExecutor(1) as threads:
        lead = threads.submit(answers, address, (0, 3))
        eventually(lambda: visited(b"GET / HTTP/1.1\r\n"))
        eventually(lambda: visited(hello))
        assert answers(address, (2, 3), (1, 3)) == [None, None]
        assert lead.result() == [None]
