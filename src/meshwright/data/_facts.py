"""Facts about examples that all processes should agree on: their number, and digests of three."""

import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from meshwright.data._kinds import Source
from meshwright.data._source import Part, as_source, num_examples, rows_of
from meshwright.processes import _internal as processes

_READINGS = 4
"""Number of readings of each of the three; examples made at random differ between them and get no digest."""


def facts_of(examples: Any) -> dict[str, str]:
    """Return the number of examples, and digests of the first, the middle and the last, by name.

    Collective: if any process finds that examples are made at random, all return the number alone.
    """
    source = as_source(examples) if num_examples(examples) else []
    ids = sorted({0, len(source) // 2, len(source) - 1}) if len(source) else []
    readings = [list(_digests(source, ids)) for _ in range(_READINGS)]
    at_random = processes.gather_on_hosts("the examples", any(reading != readings[0] for reading in readings))
    digests = {} if any(at_random) else {f"example {i}": x for i, x in zip(ids, readings[0], strict=True)}
    return {"number of examples": str(len(source)), **digests}


def _digests(source: Source, ids: list[int]) -> Iterable[str]:
    return map(_digest, rows_of(Part(source, np.asarray(ids, np.int64))) if ids else [])


def _digest(example: Any) -> str:
    """Return a digest of an example; of leaves that are neither numbers nor text, only the type counts."""
    leaves, structure = jax.tree.flatten(example, is_leaf=lambda x: x is None)
    found = hashlib.sha256(str(structure).encode())
    for x in leaves:
        found.update(_bytes(x))
    return found.hexdigest()[:12]


def _bytes(x: Any) -> bytes:
    if isinstance(x, str | bytes | int | float | complex | None):
        return repr(x).encode()
    if not (hasattr(x, "__array__") or hasattr(x, "__array_interface__")):
        return type(x).__qualname__.encode()
    array = np.asarray(x)
    values = str(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return f"{array.dtype}{array.shape}".encode() + values
