"""The order of the data: a pure function of a counter.

Position `c` of a run belongs to epoch `c // n` and reads the record `order(c % n)`, where `order` is a
bijection of 0..n-1 keyed by the seed and the epoch. So the whole state of an input is one integer, a run can
start at any position, and neither processes nor batch sizes affect the order.

The bijection is a generalised Feistel network. Positions are cells of the smallest near-square table with at
least n cells. A round shifts a cell's row by a hash of its column, or its column by a hash of its row. The
few cells that land on n or above pass through the network again (Black and Rogaway, "Ciphers with Arbitrary
Finite Domains", 2002: cycle-walking and generalised Feistel ciphers). It computes 64 rows of 10^12 records in
about a tenth of a millisecond. `Order` computes a few thousand at once, which costs little more than 64.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# Four rounds already pass tests of randomness, and two more cost microseconds.
ROUNDS = 6

# The number of positions that are computed at once.
WINDOW = 8192

Uint64s = np.ndarray


class Position(NamedTuple):
    """A position in a run: a number of samples into a stretch."""

    stretch: int
    """Number of the stretch."""
    samples: int
    """Number of samples of the stretch that were taken."""
    state: Any = None
    """State of the stretch; see `Stretch.state`."""


class Order:
    """The order of the records of one run: it maps positions to record ids."""

    def __init__(self, num_records: int, seed: int | None):
        self._num_records, self._seed = num_records, seed
        self._window = 0, np.empty(0, np.int64)

    def ids(self, start: int, offsets: np.ndarray) -> np.ndarray:
        """Return the records at positions `start + offsets`, int64[k]; the offsets ascend from 0."""
        first, ids = self._window
        length = int(offsets[-1]) + 1
        if start < first or start + length > first + len(ids):
            # A few thousand ids cost little more than one batch of them.
            positions = np.arange(start, start + max(length, WINDOW))
            first, ids = self._window = start, record_ids(positions, self._num_records, self._seed)
        return ids[start - first + offsets]


def record_ids(positions: np.ndarray, num_records: int, seed: int | None) -> np.ndarray:
    """Return the record that each position of a run reads.

    Returns:
      Record numbers, int64[k], each in 0..num_records-1. Within one epoch no record comes twice.

    Example:
      >>> sorted(mw.data._internal.record_ids(np.arange(4), 4, seed=0).tolist())
      [0, 1, 2, 3]
    """
    epochs, within = np.divmod(np.asarray(positions, np.int64), num_records)
    if seed is None:
        return within
    num_rows = math.isqrt(num_records - 1) + 1
    table = num_rows, -(-num_records // num_rows)
    distinct, which = np.unique(epochs, return_inverse=True)
    keys = np.take(_round_keys(seed, distinct), which, axis=1)
    ids = _feistel(within.astype(np.uint64), table, keys)
    # Cycle-walking: the few positions that land outside pass through the network again.
    outside = np.flatnonzero(ids >= num_records)
    while outside.size:
        ids[outside] = _feistel(ids[outside], table, keys[:, outside])
        outside = outside[ids[outside] >= num_records]
    return ids.astype(np.int64)


def examples_at(position: Mapping[str, Any], num_samples: int) -> np.ndarray | None:
    """Return the numbers of the examples that batches read next, int64[k]; None if examples have no numbers.

    Example:
      >>> mw.data._internal.examples_at({"samples": 3, "seed": None, "num_examples": 4}, 2)
      array([3, 0])
    """
    if position.keys() != {"samples", "seed", "num_examples"} or not position["num_examples"]:
        return None
    positions = np.arange(position["samples"], position["samples"] + num_samples)
    return record_ids(positions, position["num_examples"], position["seed"])


def _feistel(x: Uint64s, table: tuple[int, int], keys: Uint64s) -> Uint64s:
    num_rows, num_columns = (np.uint64(size) for size in table)
    row, column = x // num_columns, _remainder(x, num_columns)
    for row_key, column_key in zip(keys[::2], keys[1::2], strict=True):
        row = _remainder(row + _hash(column ^ row_key), num_rows)
        column = _remainder(column + _hash(row ^ column_key), num_columns)
    return row * num_columns + column


def _remainder(x: Uint64s, n: np.uint64) -> Uint64s:
    # NumPy divides by a scalar with fast multiplications, but has no such fast `%`.
    return x - x // n * n


def _hash(x: Uint64s) -> Uint64s:
    # One bit less, so that a later sum does not overflow.
    return _mix(x) >> np.uint64(1)


def _round_keys(seed: int, epochs: np.ndarray) -> Uint64s:
    """Return a key for each round and epoch: uint64[ROUNDS, k]."""
    of_seed = _mix(np.array([seed], np.int64).astype(np.uint64))
    rounds = np.arange(1, ROUNDS + 1, dtype=np.uint64)[:, None]
    return _mix(_mix(of_seed ^ epochs.astype(np.uint64)) + rounds)


def _mix(x: Uint64s) -> Uint64s:
    """Return SplitMix64's finaliser (Steele, Lea and Flood, 2014): each input bit affects each output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
