"""Exchanges small JSON values between the processes of a run, by collectives on the devices.

All functions except `is_lead` are collective: call them on the main thread only, at the same point of the
program on every process. Collectives of two threads may start in different orders on different hosts, and
then all processes wait forever. With one process, nothing is sent or converted.
"""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


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
    return [each for _, each in pairs]


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
