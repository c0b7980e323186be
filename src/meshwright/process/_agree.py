"""Exchange of small JSON values between the processes of a run, through the devices.

Everything here is collective: call it from the main thread only, at the same point of the program on every
process. Two threads' collectives may start in different orders on different hosts, and then all of them wait
forever. With one process nothing is sent, and nothing is converted.
"""

import json
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_lead() -> bool:
    """Return whether this is process 0, which speaks and writes for all. Not collective."""
    return jax.process_index() == 0


def agree(value: Any) -> Any:
    """Return process 0's `value` on every process. Collective.

    The value must be JSON's: numbers, text, None, lists and string-keyed dicts of them.
    """
    if jax.process_count() == 1:
        return value
    message = json.dumps(value).encode() if is_lead() else b""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    return json.loads(multihost_utils.broadcast_one_to_all(_padded(message, length)).tobytes())


def gather(value: Any) -> list[Any]:
    """Return every process's `value`, in the order of the processes, on every process. Collective.

    With this an error on one process can be raised on all: gather `None` or the message, then look.
    """
    if jax.process_count() == 1:
        return [value]
    message = json.dumps([jax.process_index(), value]).encode()
    length = int(multihost_utils.process_allgather(np.int32(len(message))).max())
    rows = multihost_utils.process_allgather(_padded(message, length))
    # By the number that each one sent: devices need not be ordered by process.
    return [said for _, said in sorted((json.loads(row.tobytes()) for row in rows), key=lambda pair: pair[0])]


def barrier(name: str) -> None:
    """Return when every process has called it with this `name`. Collective.

    Raises:
      AssertionError: processes met here under different names.
    """
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _padded(message: bytes, length: int) -> np.ndarray:
    """Return `message` and blanks, which JSON ignores, in one of few lengths: each is compiled for."""
    return np.frombuffer(message.ljust(1 << max(6, (length - 1).bit_length())), np.uint8)
