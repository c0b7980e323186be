"""Predictions in a file, one line of JSON for each example. A killed call is resumed where it stopped.

preds.jsonl         all predictions; the file gets this name when the last one is written
preds.jsonl.part    the predictions so far
preds.jsonl.about   the parameters, the seed and the number of examples; a later call compares them

The parameters are compared by a fingerprint. It is computed on the devices, in integers modulo 2^32. The sum
of such integers does not depend on the order of the terms, so the same values have the same fingerprint on
every mesh.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout


class Outputs:
    """A file of predictions. Only one process may write it."""

    def __init__(self, path: Path, about: Mapping[str, Any]):
        self._path, self._about = path, dict(about)
        self._part_path = path.with_name(f"{path.name}.part")
        self._about_path = path.with_name(f"{path.name}.about")

    def begin(self, batch_size: int) -> int | None:
        """Return how many predictions of an earlier call are kept, in whole batches; None if all are
        there.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        existing = [path for path in (self._path, self._part_path) if path.exists()]
        if not existing:
            self._about_path.write_text(json.dumps(self._about), encoding="utf-8")
            self._part_path.touch()
            return 0
        self._check_about(existing[0])
        return None if self._path in existing else _truncate(self._part_path, batch_size)

    def append(self, outputs: Iterable[Any]) -> None:
        """Append the next predictions. When this returns, they survive the death of this process."""
        lines = "".join(json.dumps(output, default=_as_json) + "\n" for output in outputs)
        with self._part_path.open("ab") as file:
            file.write(lines.encode())

    def finish(self) -> None:
        """Give the complete file its final name."""
        with self._part_path.open("rb") as file:
            os.fsync(file.fileno())
        self._part_path.replace(self._path)

    def _check_about(self, existing: Path) -> None:
        recorded = _read_about(self._about_path)
        changes = [
            f"{name} was {recorded.get(name)}, is now {value}"
            for name, value in self._about.items()
            if recorded.get(name) != value
        ]
        if changes:
            raise UsageError(
                f"{existing} already holds other predictions: {'; '.join(changes)}.\n"
                "  Remove the file to start again, or give another path."
            )


def _read_about(about: Path) -> dict[str, Any]:
    """Return the values that an earlier call wrote; empty if the file is missing or was left half written."""
    try:
        return json.loads(about.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}


def _truncate(path: Path, batch_size: int) -> int:
    """Truncate the file after its last whole batch, and return how many predictions are kept.

    The batches then hold the same examples as in a call that was never killed, so rounding and randomness
    are the same.
    """
    count = size = end = 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, start=1):
            # After a crash of the machine, bytes that were not on disk yet may be zeros.
            if not line.endswith(b"\n") or b"\0" in line:
                break
            end += len(line)
            if number % batch_size == 0:
                count, size = number, end
        file.truncate(size)
    return count


def _as_json(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return np.asarray(value).tolist()
    raise UsageError(
        f"JSON cannot hold an output that contains a value of type {type(value).__name__}: {value!r:.60}.\n"
        "  Return numbers, strings, arrays, or lists and dictionaries of them; or leave out `to`."
    )


def fingerprint(arrays: PyTree, layout: Layout) -> str:
    """Return a hash of the names, shapes and values of `arrays`, as eight hexadecimal digits. Collective.

    Values are hashed as float32: values that are equal in float32 count as equal.
    """
    descriptions = [f"{name}{list(x.shape)}{x.dtype}" for name, x in tree.named_leaves(arrays).items()]
    sums = jax.jit(_hashes, out_shardings=layout.replicated)(arrays)
    return f"{zlib.crc32(np.asarray(sums).tobytes(), zlib.crc32('/'.join(descriptions).encode())):08x}"


def _hashes(arrays: PyTree) -> jax.Array:
    return jnp.asarray([_hash(x) for x in jax.tree.leaves(arrays)], jnp.uint32)


def _hash(x: jax.Array) -> jax.Array:
    """Return a uint32 that depends on each element and on its index."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    indices = jnp.zeros(x.shape, jnp.uint32)
    for dim, size in enumerate(x.shape):
        indices = indices * size + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
    values = jax.lax.bitcast_convert_type(jnp.real(x).astype(jnp.float32), jnp.uint32)
    return jnp.sum(_murmur(values ^ _murmur(indices)), dtype=jnp.uint32)


def _murmur(x: jax.Array) -> jax.Array:
    """Return the finaliser of MurmurHash3 (Appleby, 2011): each bit depends on every bit of `x`."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
