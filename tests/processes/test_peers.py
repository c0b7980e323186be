"""What an error tells of another process, and what it does not."""

import os
import time

import jax
import pytest

from meshwright.errors import EXIT_PEERS, PeersError, UsageError
from meshwright.processes import _internal as processes
from meshwright.processes import _peers
from meshwright.processes._member import member

GLOO = "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547]"
OF_ANOTHER = [
    ValueError(f"{GLOO} Connection closed by peer [127.0.0.1]:18060"),
    jax.errors.JaxRuntimeError(f"{GLOO} Read error [127.0.0.1]:27284: Connection reset by peer"),
    jax.errors.JaxRuntimeError("INTERNAL: NCCL operation ncclAllReduce failed: remote process exited"),
    RuntimeError("Unable to initialize backend 'cpu': DEADLINE_EXCEEDED: GetKeyValue() timed out"),
    jax.errors.JaxRuntimeError("UNAVAILABLE: Failed to send RPC to coordination service."),
]
OF_THIS_ONE = [
    ConnectionResetError("Connection reset by peer"),  # of a store, say
    ValueError("the batch is empty"),
    jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
    jax.errors.JaxRuntimeError(f"{GLOO} Received data size doesn't match expected size"),
]


@pytest.mark.parametrize("error", OF_ANOTHER, ids=str)
def test_an_error_that_tells_of_a_lost_process_is_a_peers_error_with_its_cause(error):
    with (
        pytest.raises(PeersError, match="another process of this run is lost") as caught,
        processes.collective(),
    ):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.exit_code == EXIT_PEERS == 6


@pytest.mark.parametrize("error", OF_THIS_ONE, ids=str)
def test_all_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, processes.collective():
        raise error
    assert caught.value is error


class Wires:
    """Connections of a process to others, which keep what it sends."""

    def __init__(self, *others):
        self.others, self.sent = dict.fromkeys(others).keys(), []

    def attach(self, on_message, poll):
        self.on_message, self.poll = on_message, poll

    def broadcast(self, message, *, but=None):
        self.sent.append(message)

    def close_in_fork(self):
        pass


@pytest.fixture
def wires(monkeypatch):
    """Return a function that connects this process to those with these numbers."""
    monkeypatch.setattr(member, "watch", None)

    def connect(*others):
        connected = Wires(*others)
        _peers.watch_peers(connected)
        return connected

    return connect


def ends(monkeypatch, wires, seconds):
    """Return the exit codes with which this process would end so many seconds later."""
    codes, later = [], time.monotonic() + seconds
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(time, "monotonic", lambda: later)
    wires.poll()
    return codes


def test_process_0_compares_the_ends_of_examples_alone_and_tells_only_a_difference(wires):
    connected = wires(*range(1, 9))
    stream = member.watch.streams.open()
    for number in range(1, 9):
        connected.on_message(number, {"process": number, "stream": stream, "end": [5, 1, number // 8]})
    assert connected.sent == []
    with pytest.raises(UsageError, match="on process 8, and in batch 5, which has 0 examples"):
        member.watch.read(stream, 5, [5, 1, 0])
    assert [list(message) for message in connected.sent] == [["process", "stream", "end"], ["differ"]]


@pytest.mark.parametrize(("seconds", "codes"), [(4, []), (6, [75])])
def test_when_all_are_at_the_end_jax_has_seconds_to_let_a_process_go(monkeypatch, wires, seconds, codes):
    connected = wires(0)
    monkeypatch.setattr(member, "exit_code", 75)
    connected.on_message(0, {"over": True})
    assert connected.sent == [{"over": True}]
    assert ends(monkeypatch, connected, seconds) == codes


def test_process_0_tells_when_all_are_at_the_end_and_goes_last(monkeypatch, wires):
    connected = wires(1, 2)
    connected.on_message(1, {"end": 0})
    _peers.leave_together()
    assert {"over": True} not in connected.sent
    member.watch.over = False
    connected.on_message(2, {"end": 0})
    assert {"over": True} in connected.sent
    connected.on_message(1, {"over": True})
    assert ends(monkeypatch, connected, 5.5) == []
    assert ends(monkeypatch, connected, 1) == [0]


def test_a_process_that_jax_lets_go_ends_by_itself(monkeypatch, wires):
    connected = wires(0)
    _peers.leave_together()
    connected.on_message(0, {"over": True})
    assert ends(monkeypatch, connected, 600) == []
