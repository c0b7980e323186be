"""Comparison between processes: before they run a program, they check that it is the same on all.

Without this, a process with another learning rate trains on in step with the others, to a result that nobody
asked for, and one with another number of steps waits for ever. With one process nothing is done, and with
several nothing at each step.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh

from meshwright.errors import UsageError
from meshwright.process._board import Board
from meshwright.process._differences import describe_difference, lines_of, shortened
from meshwright.process._environment import hardware
from meshwright.process._failures import failure_of
from meshwright.process._meet import meet
from meshwright.process._member import member
from meshwright.process._program import program_text

Said = str | Mapping[str, str]
"""A text, or settings by name."""

_MOST_VOICES = 8
"""The number of differing processes that are compared in full."""


def sit_at(board: Board) -> None:
    """Let this process compare at `board` from now on."""
    member.board = board


def is_seated() -> bool:
    """Return whether this process is connected to the others."""
    return member.board is not None


def compare(about: str, said: Callable[[], Said]) -> None:
    """Return when every process has come here and says the same. Collective; on the main thread.

    The processes talk over the connections of the roll call, and wait for one that is late. With one process
    `said` is not called.

    Args:
      about: What is compared, as the object of a sentence: "the settings of the experiment".
      said: Returns a text, or settings by name. If it raises on one process, all raise.

    Raises:
      UsageError: On every process, with the first difference and whose it is.
      PeersError: On every process, if one has left.
    """
    if not _are_several():
        return
    with telling():
        text = said()
        board = _seat()
        with _known_to_all():
            compare_at(board, about, text)


def compare_devices() -> None:
    """Compare the kinds of the devices, and the settings of JAX on which numbers depend. Collective.

    Raises: as `compare`.
    """
    compare("devices and settings of JAX", hardware)


def compare_at(board: Board, about: str, said: Said) -> None:
    """Compare at `board` what is `said`.

    Raises: as `compare`.
    """
    voice = {"about": about, "digest": _digest(said), "order": hash("a string")}
    heard = board.ask(about, voice, _heard)
    if not heard:
        return
    groups = {numbers[0]: numbers for numbers in heard["groups"]}
    lines = _lines(said) if board.number in groups else None

    def decide(lines: Sequence[Any]) -> None:
        spoken = {number: each for number, each in enumerate(lines) if each is not None}
        raise UsageError(describe_difference(about, spoken, groups, orders_differ=heard["orders differ"]))

    board.ask(about, lines, decide)


def everyone(about: str, value: Any) -> list[Any]:
    """Return what each process says, in their order, on every process: JSON's values. Collective.

    As `compare` it touches no device, and is for the main thread.

    Raises:
      UsageError: The processes came to do different things.
      PeersError: One has left.
    """
    if not _are_several():
        return [value]
    board = _seat()
    with _known_to_all():
        return board.ask(about, {"about": about, "value": value}, _values)


class Compared:
    """A function that `jax.jit` made, each program of which is compared before it is compiled.

    A program is known by the shapes of all arguments but the first, the state or parameters. On a mesh that
    is not of all processes nothing is compared.

    Args:
      about: The program, as the object of a sentence.
      function: What `jax.jit` returned.
      mesh: That it runs on.
    """

    def __init__(self, about: str, function: Any, mesh: Mesh):
        self._about, self._function = about, function
        self._is_of_all = jax.process_count() > 1 and is_of_all(mesh.devices.flat)
        self._known: set[Any] = set()
        self.eval_shape = function.eval_shape

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns. Collective."""
        self.compare(*arguments)
        return self._function(*arguments)

    def compare(self, *arguments: Any) -> None:
        """Compare the program for arguments of these shapes, arrays or structs, if it is new. Collective.

        Raises: as `process.compare`.
        """
        if not self._is_of_all:
            return
        leaves, structure = jax.tree.flatten(arguments[1:])
        shapes = structure, tuple((x.shape, x.dtype) for x in leaves)
        if shapes not in self._known:
            compare(self._about, lambda: self._text(*arguments))
            self._known.add(shapes)

    def _text(self, *arguments: Any) -> str:
        traced = self._function.trace(*arguments)
        return program_text(traced, traced.lower())


def is_of_all(devices: Iterable[jax.Device]) -> bool:
    """Return whether there are several processes and all of them have some of `devices`."""
    count = jax.process_count()
    return count > 1 and len({device.process_index for device in devices}) == count


@contextmanager
def telling() -> Iterator[None]:
    """Tell the other processes of an error in the block, so that they raise it where they next compare."""
    try:
        yield
    except Exception as error:
        tell(error)
        raise


def tell(error: BaseException) -> None:
    """Tell the other processes that this one has failed, unless they know. Not collective; never waits."""
    if member.board is not None and isinstance(error, Exception) and not _is_known(error):
        member.board.tell(failure_of(error))
        member.known_error = error


def _are_several() -> bool:
    """Return whether there are other processes. Touch no device for it if they are connected."""
    return member.board is not None or jax.process_count() > 1


def _seat() -> Board:
    if member.board is None:
        sit_at(meet())
    assert member.board is not None
    return member.board


def came_from_another() -> bool:
    """Return whether the last error of which all know happened on another process."""
    known, board = member.known_error, member.board
    return known is not None and board is not None and known is board.heard


@contextmanager
def _known_to_all() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        member.known_error = error
        raise


def _is_known(error: BaseException | None) -> bool:
    """Return whether this is the error that the others know, or was raised because of it."""
    while error is not None and error is not member.known_error:
        error = error.__cause__ or error.__context__
    return error is not None


def _heard(voices: Sequence[Mapping[str, Any]]) -> Any:
    """Return who says the same, or None where all do.

    Raises:
      UsageError: The processes came to compare different things.
    """
    _check_about(voices)
    groups = _grouped([voice["digest"] for voice in voices])
    if len(groups) == 1:
        return None
    orders_differ = len({voice["order"] for voice in voices}) > 1
    return {"groups": groups[:_MOST_VOICES], "orders differ": orders_differ}


def _values(voices: Sequence[Mapping[str, Any]]) -> list[Any]:
    _check_about(voices)
    return [voice["value"] for voice in voices]


def _check_about(voices: Sequence[Mapping[str, Any]]) -> None:
    about = _grouped([voice["about"] for voice in voices])
    if len(about) > 1:
        at = ", ".join(f"process {numbers[0]} at {voices[numbers[0]]['about']}" for numbers in about)
        raise UsageError(
            f"the processes of this run do different things: {at}.\n"
            "  All processes must run one program: start them with the same code, settings and data."
        )


def _grouped(values: Sequence[Any]) -> list[list[int]]:
    """Return the numbers of those that are equal, together, in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for number, value in enumerate(values):
        groups.setdefault(json.dumps(value, sort_keys=True), []).append(number)
    return list(groups.values())


def _digest(said: Said) -> str:
    text = said if isinstance(said, str) else json.dumps(list(said.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(said: Said) -> Mapping[str, str]:
    if isinstance(said, str):
        return lines_of(said)
    return {name: shortened(text) for name, text in said.items()}
