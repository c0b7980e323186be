"""The rendezvous among threads: the error that each process gets when something is wrong."""

import contextlib
import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from eventually import eventually
from meshwright.errors import PeersError
from meshwright.launch._local import free_port
from meshwright.processes import _internal as processes
from meshwright.processes import _rendezvous, _sockets


@pytest.fixture
def address():
    return f"127.0.0.1:{free_port()}"


def answers(address, *calls, timeout_seconds=400, token="drawn"):
    """What each of `calls`, (process id, number of processes), hears: an error's text, or None."""

    def one(call):
        process_id, number = call
        try:
            processes.rendezvous(
                address, number, process_id, timeout_seconds=timeout_seconds, token=token
            ).close()
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
    hello = json.dumps({"process": 1, "of": 3, "token": "drawn"}).encode() + b"\n"

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


def test_who_does_not_know_the_token_is_no_process_of_the_run(address):
    with ThreadPoolExecutor(1) as threads:
        lead = threads.submit(answers, address, (0, 2))
        refused = answers(address, (1, 2), timeout_seconds=0.5, token="another")
        assert "one with another MESHWRIGHT_TOKEN" in refused[0]
        assert answers(address, (1, 2)) == lead.result() == [None]


def test_connections_that_send_nothing_hold_up_no_others(address, monkeypatch):
    monkeypatch.setattr(_sockets, "LINE_SECONDS", 60)
    host, port = _sockets.split_address(address)
    with ThreadPoolExecutor(1) as threads, contextlib.ExitStack() as silent:
        lead = threads.submit(answers, address, (0, 2))

        def visited():
            with contextlib.suppress(ConnectionRefusedError):
                return silent.enter_context(socket.create_connection((host, port)))

        for _ in range(5):
            eventually(visited)
        assert answers(address, (1, 2), timeout_seconds=30) == lead.result(timeout=30) == [None]


def test_a_line_that_comes_in_drops_has_a_time_limit_as_a_whole():
    reader, writer = socket.socketpair()
    with reader, writer, ThreadPoolExecutor(1) as threads:
        line = threads.submit(_sockets.read_line, reader, 0.5)
        num_drops = 0
        while not line.done() and num_drops < 500:
            writer.sendall(b" ")
            num_drops += 1
            wait([line], timeout=0.1)
        assert num_drops < 500
        assert line.result() is None


@pytest.mark.parametrize("sent", [b"no JSON\n", b"[" * 4000 + b"\n"], ids=["text", "deep"])
def test_what_is_no_line_of_a_message_is_none(sent):
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.sendall(sent)
        assert _sockets.read_line(reader, 10) is None


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:1", "127.0.0.1"),
        ("localhost:1", "127.0.0.1"),
        ("192.0.2.1:1", ""),  # of nobody, as that of a router before this machine
        (f"{socket.gethostname()}:1", ""),  # other machines may know another address of this name
    ],
)
def test_the_host_at_which_process_0_listens(address, host):
    assert _sockets.own_host(address) == host


def test_where_the_coordinator_is_on_loopback_nothing_listens_elsewhere(address):
    with _rendezvous._listen(address) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_short_message_to_all_does_not_wait_for_one_that_does_not_read():
    ends = [socket.create_server(("127.0.0.1", 0))]
    here = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(ends[0])
        for number in (1, 2):
            here[number] = socket.create_connection(ends[0].getsockname())
            ends.append(stack.enter_context(ends[0].accept()[0]))
        connections = _sockets.Connections(here)
        stack.callback(connections.close)
        with ThreadPoolExecutor(1) as threads:
            full = b"x" * (1 << 16)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(here[1].fileno(), full)
            sent = threads.submit(connections.broadcast, {"gone": 3})
            assert wait([sent], timeout=10).done
        assert _sockets.read_line(ends[2], 10) == {"gone": 3}
