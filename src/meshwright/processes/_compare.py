"""Comparison between processes: before they run a program, they check that it is the same on all.

Otherwise a process with another learning rate would train in step with the others, to a result that nobody
wants, and one with another number of steps would wait forever. With one process nothing is done; with several
processes nothing is done at each step.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from meshwright.errors import PeersError, UsageError
from meshwright.processes._agree import failure_of
from meshwright.processes._differences import describe_difference, lines_of, program_text, shortened
from meshwright.processes._environment import hardware
from meshwright.processes._exchange import DeviceExchange, Exchange
from meshwright.processes._member import member
from meshwright.processes._rendezvous import connect_processes

Text = str | Mapping[str, str]
"""The thing to compare: a text, or settings by name."""

_FAILURE_SECONDS = 5
"""The seconds in which all processes raise an error if it has the same cause on all."""
_MOST_GROUPS = 8
"""The number of groups of equal processes that send their texts in full."""


def use_exchange(exchange: Exchange) -> None:
    """Compare over these connections from now on."""
    member.exchange = exchange
    # The watch may be set later, so the function reads it at each call.
    exchange.while_waiting = lambda: member.watch.check_for_difference() if member.watch else None


def is_connected() -> bool:
    """Return whether this process is connected to the others."""
    return member.exchange is not None


def compare(about: str, text: Callable[[], Text]) -> None:
    """Check that all processes call this with the same text. Collective; call it on the main thread.

    The processes use the connections of the rendezvous, and wait for a process that is late. With one process
    `text` is not called.
    """
    if not _are_several():
        return
    with broadcasting_errors():
        own_text = text()
        exchange = _exchange()
        with _noting_error():
            compare_over(exchange, about, own_text)


def compare_devices() -> None:
    """Compare kinds and number of devices, and the settings of JAX on which numbers depend. Collective."""
    compare("devices and settings of JAX", hardware)


def compare_over(exchange: Exchange, about: str, text: Text) -> None:
    """Check that the texts of all processes are the same. Collective.

    First the processes compare digests. Only if these differ, one process of each group sends its text.
    """
    whole = text if isinstance(text, str) else json.dumps(list(text.items()))
    digest = hashlib.sha256(whole.encode()).hexdigest()
    # Python seeds the hash of strings by process, and with it the order of sets: equal hashes, equal orders.
    message = {"about": about, "digest": digest, "order": hash("a string")}
    difference = exchange.all_reduce(about, message, _groups_if_different)
    if not difference:
        return
    groups = {numbers[0]: numbers for numbers in difference["groups"]}
    lines: Mapping[str, str] | None = None
    if exchange.process_id in groups:
        is_program = isinstance(text, str)
        lines = lines_of(text) if is_program else {x: shortened(value) for x, value in text.items()}

    def raise_difference(lines: Sequence[Any]) -> None:
        sent = {number: text for number, text in enumerate(lines) if text is not None}
        raise UsageError(describe_difference(about, sent, groups, orders_differ=difference["orders differ"]))

    exchange.all_reduce(about, lines, raise_difference)


def gather_on_hosts(about: str, value: Any) -> list[Any]:
    """Return the values of all processes, in the order of the processes, on every process. Collective.

    Unlike `gather`, it uses no device. Call it on the main thread.
    """
    if not _are_several():
        return [value]
    exchange = _exchange()
    with _noting_error():
        return exchange.all_reduce(about, {"about": about, "value": value}, _values)


def check_all_failed() -> None:
    """Check that all processes call this within some seconds, each because of an error. Collective.

    Process 0 decides, so that the result is the same on all that call this.
    """
    if not _are_several():
        return
    exchange = member.exchange
    if exchange is None or isinstance(exchange, DeviceExchange):
        raise PeersError("the processes are not connected, so none knows whether all have an error")
    seconds = _FAILURE_SECONDS * (1 if exchange.process_id == 0 else 2)
    deadline, while_waiting = time.monotonic() + seconds, exchange.while_waiting

    def check_deadline() -> None:
        while_waiting()
        if time.monotonic() > deadline:
            raise PeersError(f"not all processes raised an error within {seconds} s")

    exchange.while_waiting = check_deadline
    try:
        exchange.all_reduce("errors", {"about": "an error", "value": None}, _values)
    finally:
        exchange.while_waiting = while_waiting


class CheckedProgram:
    """A function that `jax.jit` returned, each program of which is compared before it is compiled.

    A program is identified by the shapes of all arguments except the first, the state or parameters. On a
    mesh that does not contain all processes nothing is compared.
    """

    def __init__(self, about: str, function: Any, mesh: Mesh):
        self._about, self._function = about, function
        self._spans_all = jax.process_count() > 1 and spans_all_processes(mesh.devices.flat)
        self._compared: set[Any] = set()
        self.trace = function.trace

    def __call__(self, *arguments: Any) -> Any:
        """Return the result of the function. Collective."""
        self.compare(*arguments)
        return self._function(*arguments)

    def compare(self, *arguments: Any) -> None:
        """Compare the program for arguments of these shapes, if it is new. Collective."""
        if not self._spans_all:
            return
        leaves, structure = jax.tree.flatten(arguments[1:])
        shapes = structure, tuple((x.shape, x.dtype) for x in leaves)
        if shapes not in self._compared:
            compare(self._about, lambda: self._text(*arguments))
            self._compared.add(shapes)

    def _text(self, *arguments: Any) -> str:
        traced = self._function.trace(*arguments)
        return program_text(traced, traced.lower())


def spans_all_processes(devices: Iterable[jax.Device]) -> bool:
    """Return whether there are several processes, and each of them has one of the devices."""
    count = jax.process_count()
    return count > 1 and len({device.process_index for device in devices}) == count


@contextmanager
def broadcasting_errors() -> Iterator[None]:
    """Send an error in the block to the other processes, which raise it where they next compare."""
    try:
        yield
    except Exception as error:
        share_error(error)
        raise


def share_error(error: BaseException) -> None:
    """Send an error of this process to the others, unless they know it. Not collective; never waits."""
    if member.exchange is not None and isinstance(error, Exception) and not _is_known(error):
        member.exchange.send_failure(failure_of(error))
        member.known_error = error


def failed_elsewhere() -> bool:
    """Return whether the last error that all processes know happened on another process."""
    known_error, exchange = member.known_error, member.exchange
    return known_error is not None and exchange is not None and known_error is exchange.remote_error


def _are_several() -> bool:
    """Return whether there are other processes. It uses no device if they are connected."""
    return member.exchange is not None or jax.process_count() > 1


def _exchange() -> Exchange:
    if member.exchange is None:
        use_exchange(connect_processes())
    assert member.exchange is not None
    return member.exchange


@contextmanager
def _noting_error() -> Iterator[None]:
    """Note an error in the block as one that all processes know."""
    try:
        yield
    except Exception as error:
        member.known_error = error
        raise


def _is_known(error: BaseException | None) -> bool:
    """Return whether all processes know an error, or know the error that caused this one."""
    while error is not None and error is not member.known_error:
        error = error.__cause__ or error.__context__
    return error is not None


def _groups_if_different(messages: Sequence[Mapping[str, Any]]) -> Any:
    """Return the groups of processes with equal digests, or None if all are equal."""
    _check_about(messages)
    groups = _groups([message["digest"] for message in messages])
    if len(groups) == 1:
        return None
    orders_differ = len({message["order"] for message in messages}) > 1
    return {"groups": groups[:_MOST_GROUPS], "orders differ": orders_differ}


def _values(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    _check_about(messages)
    return [message["value"] for message in messages]


def _check_about(messages: Sequence[Mapping[str, Any]]) -> None:
    about = _groups([message["about"] for message in messages])
    if len(about) > 1:
        places = ", ".join(f"process {numbers[0]} at {messages[numbers[0]]['about']}" for numbers in about)
        raise UsageError(
            f"the processes of this run do different things: {places}.\n"
            "  All processes must run the same program: start them with the same code, settings and data."
        )


def _groups(values: Sequence[Any]) -> list[list[int]]:
    """Return groups of the indices of equal values, in the order of the first index of each group."""
    groups: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(json.dumps(value, sort_keys=True), []).append(number)
    return list(groups.values())


T = TypeVar("T")


def ending_together(results: Iterator[T], position: Callable[[T], tuple[int, int]]) -> Iterator[T]:
    """Yield results, and check that they, and each epoch of them, end in the same batch on all processes.

    Collective: all processes must read the same streams in the same order, on the main thread. At the end of
    the results, this waits for the other processes.
    """
    watch = member.watch
    # This process is not connected to others.
    if watch is None:
        yield from results
        return
    stream, count, epoch = watch.streams.open(), 0, None
    try:
        with broadcasting_errors():
            for count, result in enumerate(results, 1):
                new_epoch, num_examples = position(result)
                is_end = epoch not in (None, new_epoch)
                watch.read(stream, count, [count, new_epoch, num_examples] if is_end else None)
                epoch = new_epoch
                yield result
            watch.read(stream, count, [count])
            gather_on_hosts("the end of the examples", count)
    finally:
        watch.streams.close(stream)
