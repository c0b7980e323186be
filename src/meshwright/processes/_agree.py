"""Agreement of the processes of a run, by collectives on the devices: values, results, errors, a directory.

All functions except `is_lead` are collective: call them on the main thread only, at the same point of the
program on every process. Collectives of two threads may start in different orders on different hosts, and
then all processes wait forever. With one process, nothing is sent or converted. An error travels as JSON, so
that it can be raised on other processes.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from meshwright import errors
from meshwright.errors import MeshwrightError


def is_lead() -> bool:
    """Return whether this is process 0, which prints and writes for all processes. Not collective.

    Example:
      >>> if mw.parallel.is_lead():
      ...     print("written once, by process 0")
      written once, by process 0
    """
    return jax.process_index() == 0


def agree(value: Any) -> Any:
    """Return the value of process 0 on every process. Collective."""
    if jax.process_count() == 1:
        return value
    message = json.dumps(value).encode() if is_lead() else b""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    return json.loads(multihost_utils.broadcast_one_to_all(_padded(message, length)).tobytes())


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, in the order of the processes, on every process. Collective."""
    if jax.process_count() == 1:
        return [value]
    message = json.dumps([jax.process_index(), value]).encode()
    length = int(multihost_utils.process_allgather(np.int32(len(message))).max())
    rows = multihost_utils.process_allgather(_padded(message, length))
    # Sort by the number that each process sent: devices need not be ordered by process.
    pairs = sorted((json.loads(row.tobytes()) for row in rows), key=lambda pair: pair[0])
    return [value for _, value in pairs]


def barrier(name: str) -> None:
    """Wait until every process has called it. Collective.

    Args:
      name: A name for this place in the program, the same on all processes.

    Raises:
      AssertionError: Processes called it with different names.

    Example:
      >>> mw.parallel.barrier("the data are there")  # returns when all processes have called it
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _padded(message: bytes, length: int) -> np.ndarray:
    """Return a message with spaces added, which JSON ignores, up to a power of two.

    Each length needs a program of its own, so there are few lengths.
    """
    return np.frombuffer(message.ljust(1 << max(6, (length - 1).bit_length())), np.uint8)


T = TypeVar("T")


def on_lead(act: Callable[[], T]) -> T:
    """Call a function on process 0; return its result, or raise its error, on every process. Collective.

    An error of a user's function is raised unchanged on process 0, and as a `MeshwrightError` that names
    process 0 on the others.
    An `OSError` becomes a `MeshwrightError` on all processes.
    """
    answer, error = _answer(act) if is_lead() else (None, None)
    answer = agree(answer)
    if "result" in answer:
        return answer["result"]
    if error is not None and _is_users(error):
        raise error
    # The launcher takes an error that names another process for that one's. Errors of ours are equal on all.
    is_others = not is_lead() and answer["kind"] == MeshwrightError.__name__
    raise error_of(answer, 0 if is_others else None) from error


def on_all(act: Callable[[], T]) -> T:
    """Call a function on every process and return its result, or raise the same error on all. Collective.

    If several processes fail, the error is that of the first one whose error is not a `DamagedError`, or of
    the first one. It is raised as by `on_lead`.
    """
    result, failure, error = None, None, None
    try:
        result = act()
    except Exception as raised:  # any error must reach the other processes
        failure, error = failure_of(raised), raised
    failures = {number: remote for number, remote in enumerate(gather(failure)) if remote}
    if not failures:
        return cast(T, result)
    number = min(failures, key=lambda number: (failures[number]["kind"] == "DamagedError", number))
    if error is not None and _is_users(error) and number == jax.process_index():
        raise error
    raise error_of(failures[number], number if jax.process_count() > 1 else None) from error


def _is_users(error: Exception) -> bool:
    """Return whether an error comes from a user's function: from neither Meshwright nor the system."""
    return not isinstance(error, MeshwrightError | OSError)


def _answer(act: Callable[[], T]) -> tuple[dict, Exception | None]:
    try:
        return {"result": act()}, None
    except Exception as error:  # any error must reach the other processes
        return failure_of(error), error


Failure = Mapping[str, str]
"""The `kind` of an error, the name of its class, and its `message`."""


def failure_of(error: Exception) -> dict[str, str]:
    """Return an error as JSON. An error that is not a `MeshwrightError` gets this kind."""
    if isinstance(error, MeshwrightError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": MeshwrightError.__name__, "message": f"{type(error).__name__}: {error}"}


def error_of(failure: Failure, process_id: int | None = None) -> MeshwrightError:
    """Return the error that a failure describes."""
    where = "" if process_id is None else f"process {process_id}: "
    return getattr(errors, failure["kind"])(where + failure["message"])


def is_shared(directory: Path) -> bool:
    """Return whether all processes see the same directory. Collective.

    Process 0 creates a file in it for a moment, and all processes look for it.
    """
    file = directory / f".seen-by-all-{agree(secrets.token_hex(4))}"
    on_lead(file.touch)
    is_visible = gather(file.exists())
    if is_lead():
        file.unlink()
    return all(is_visible)
