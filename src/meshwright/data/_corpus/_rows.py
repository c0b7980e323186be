"""Rows of equal length, filled with whole documents, and with parts of few where these leave gaps.

A document that is longer than a row is cut into rows, and the rest goes with other documents. Rests and short
documents are put together by best fit, the longest first. That is done for all documents of one length at
once, as in "longest-pack-first histogram packing" (Krell, Kosec, Perez and Fitzgibbon, 2021: Efficient
Sequence Packing without Cross-contamination). What then is empty, if it is more than a 256th of a row, is
filled with the documents of the emptiest rows, which are cut for that.

Rows depend only on the lengths of the documents of a block. They are stored beside the block, in
`000000.rows1-packed-2048`: int64 numbers, first the CRC-32 of the others, the number of rows and that of
pieces, then the fields of `Rows`. Such a file that is damaged is made again.
"""

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshwright.base._internal import crc32, open_file, read_file
from meshwright.data._corpus._blocks import Block, read_block, write_alone
from meshwright.data._corpus._store import Store

VERSION = 1
"""Rows are kept in files. Another version makes other rows of the same documents."""


# Blocks whose rows are kept in memory, and whose tokens are mapped.
_NUM_CACHED = 64


class Rows(NamedTuple):
    """Rows of pieces of documents."""

    first: np.ndarray
    """Number of the first piece of each row; at the end, the number of pieces; int64[rows + 1]."""
    starts: np.ndarray
    """Number of the first token of each piece in its block, int64[pieces]."""
    lengths: np.ndarray
    """Number of tokens of each piece, int64[pieces]."""


def packed(lengths: np.ndarray, row: int) -> Rows:
    """Return rows that hold several documents each."""
    pieces = _cut(lengths, row)
    filled = _filled(*_together(pieces[:, 1], row), pieces, row)
    return _in_order(*filled)


def one_by_one(lengths: np.ndarray, row: int) -> Rows:
    """Return rows that hold one document each, or a part of one that is longer than a row."""
    pieces = _cut(lengths, row)
    return Rows(np.arange(len(pieces) + 1), pieces[:, 0], pieces[:, 1])


def _cut(lengths: np.ndarray, row: int) -> np.ndarray:
    """Return the start and the length of each document, or of its parts, int64[pieces, 2]."""
    counts = -(-lengths // row)
    starts = np.repeat(np.cumsum(lengths) - lengths, counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    remaining = np.repeat(lengths, counts) - number * row
    return np.stack([starts + number * row, np.minimum(remaining, row)], axis=1)


def _together(lengths: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of pieces of these lengths: the row of each place, and the piece in it."""
    order = np.argsort(-lengths, kind="stable")
    counts = np.bincount(lengths, minlength=row + 1)
    # The place in `order` of the first piece of each length: longer pieces come first.
    starts = np.cumsum(counts[::-1])[::-1] - counts
    num_rows, at_rows, at_pieces = 0, [], []
    for count, contents in _kinds_of_rows(counts, row):
        numbers = np.arange(num_rows, num_rows + count)
        num_rows += count
        for length, times in contents:
            some = order[starts[length] : starts[length] + count * times]
            starts[length] += count * times
            at_rows.append(np.repeat(numbers, times))
            at_pieces.append(some)
    empty = np.empty(0, np.int64)
    return np.concatenate([*at_rows, empty]), np.concatenate([*at_pieces, empty])


def _kinds_of_rows(counts: np.ndarray, row: int) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
    """Return how many rows there are of each kind, and what they hold: lengths, and how often each."""
    kinds: dict[int, list[tuple[int, tuple[tuple[int, int], ...]]]] = {}
    # The keys of `kinds`, in order.
    spaces: list[int] = []

    def put(space: int, count: int, contents: tuple[tuple[int, int], ...]) -> None:
        if count and space not in kinds:
            insort(spaces, space)
            kinds[space] = []
        if count:
            kinds[space].append((count, contents))

    for length in np.flatnonzero(counts)[::-1].tolist():
        remaining = int(counts[length])
        while remaining:
            index = bisect_left(spaces, length)
            space, count, contents = row, remaining, ()
            if index < len(spaces):
                space = spaces[index]
                count, contents = kinds[space].pop()
                if not kinds[space]:
                    del kinds[space], spaces[index]
            times = min(space // length, remaining)
            used = min(count, remaining // times)
            put(space - times * length, used, (*contents, (length, times)))
            if contents:
                put(space, count - used, contents)
            remaining -= used * times
    return [kind for kinds_of_space in kinds.values() for kind in kinds_of_space]


def _filled(
    at_rows: np.ndarray, at_pieces: np.ndarray, pieces: np.ndarray, row: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows, starts and lengths of pieces, when the emptiest rows have filled the gaps of others."""
    starts, lengths = pieces[at_pieces].T
    sizes = np.bincount(at_rows, lengths).astype(np.int64)
    gaps = np.where(row - sizes > row // 256, row - sizes, 0)
    order = np.argsort(sizes, kind="stable")
    # The emptiest rows are emptied as long as the gaps of the others have room for their tokens.
    used = np.cumsum(sizes[order]) <= gaps.sum() - np.cumsum(gaps[order])
    givers, takers = order[used], order[~used]
    if not len(givers):
        return at_rows, starts, lengths
    is_indexed_source = np.isin(at_rows, givers)
    offered, ends = np.cumsum(lengths[is_indexed_source]), np.cumsum(gaps[takers])
    edges = np.unique(np.concatenate([[0], offered, ends[ends < offered[-1]]]))
    piece, taker = (np.searchsorted(x, edges[:-1], side="right") for x in (offered, ends))
    begins = (offered - lengths[is_indexed_source])[piece]
    return (
        np.concatenate([at_rows[~is_indexed_source], takers[taker]]),
        np.concatenate([starts[~is_indexed_source], starts[is_indexed_source][piece] + edges[:-1] - begins]),
        np.concatenate([lengths[~is_indexed_source], np.diff(edges)]),
    )


def _in_order(rows: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Rows:
    """Return rows in the order of the first documents in them, with documents in order in each row."""
    if not len(rows):
        return Rows(np.zeros(1, np.int64), starts, lengths)
    least = np.full(rows.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, rows, starts)
    order = np.lexsort((starts, least[rows]))
    begins = np.flatnonzero(np.diff(least[rows][order], prepend=-1))
    return Rows(np.append(begins, len(order)), starts[order], lengths[order])


def filled_rows(
    tokens: np.ndarray, rows: Rows, numbers: np.ndarray, row: int, weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return some rows as arrays.

    Returns:
      `tokens`, `segments`, which count the pieces of each row from 1, and are 0 where a row is empty, and
      `positions`, which begin at 0 in each piece, int32[k, row]; `weights`, 0 where a row is empty, elsewhere
      those given, or 1, float32[k, row].
    """
    counts = rows.first[numbers + 1] - rows.first[numbers]
    segments = _ramps(counts)
    pieces = np.repeat(rows.first[numbers], counts) + segments
    lengths = rows.lengths[pieces]
    positions = _ramps(lengths)
    piece_begins = np.cumsum(lengths) - lengths
    sizes = np.add.reduceat(lengths, np.cumsum(counts) - counts) if len(counts) else counts
    # A token lies as far into its row as it is behind the first token of the row's first piece.
    shift = np.arange(len(numbers)) * row - (np.cumsum(sizes) - sizes)
    targets = np.arange(len(positions)) + np.repeat(np.repeat(shift, counts), lengths)
    start = np.repeat(rows.starts[pieces] - piece_begins, lengths) + np.arange(len(positions))
    shape = len(numbers), row
    arrays = {
        "tokens": np.zeros(shape, np.int32),
        "segments": np.zeros(shape, np.int32),
        "positions": np.zeros(shape, np.int32),
        "weights": np.zeros(shape, np.float32),
    }
    values = (
        tokens[start],
        np.repeat(segments + 1, lengths),
        positions,
        1 if weights is None else weights[start],
    )
    for array, value in zip(arrays.values(), values, strict=True):
        array.reshape(-1)[targets] = value
    return arrays


def _ramps(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, … up to each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


class RowStore:
    """The rows of a store, numbered over all blocks."""

    def __init__(self, store: Store, length: int, pack: bool):
        self._store, self._length, self._pack = store, length, pack
        self._ends = np.zeros(0, np.int64)
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, tuple[Block, Rows]] = OrderedDict()
        self.digest = f"{store.digest}-{VERSION}-{length}-{'packed' if pack else 'single'}"
        """A digest of the texts, and how rows are made of them."""

    def ends(self, number: float) -> tuple[np.ndarray, bool]:
        """Return the number of rows up to the end of each block, and whether these are all blocks.

        This waits until there are more than `number` rows, or no more blocks.
        """
        with self._lock:
            while not (len(self._ends) and self._ends[-1] > number):
                block = len(self._ends)
                if not self._store.wait_for(block):
                    return self._ends, True
                num_before = self._ends[-1] if block else 0
                self._ends = np.append(self._ends, num_before + self._num_rows(block))
            return self._ends, False

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Return rows as arrays, see `filled_rows`."""
        ends = self._ends
        blocks = np.searchsorted(ends, numbers, side="right")
        begins = np.concatenate([[0], ends])[blocks]
        out: dict[str, np.ndarray] = {}
        for block in np.unique(blocks).tolist():
            index = np.flatnonzero(blocks == block)
            content, rows = self._block(block)
            arrays = filled_rows(
                content.tokens, rows, (numbers - begins)[index], self._length, content.token_weights
            )
            for name, array in arrays.items():
                out.setdefault(name, np.empty((len(numbers), *array.shape[1:]), array.dtype))[index] = array
        return out

    def close(self) -> None:
        """End the process that tokenizes, if it is one of this object's; what it has written stays."""
        self._store.close()

    def _block(self, block: int) -> tuple[Block, Rows]:
        with self._lock:
            if block not in self._cache:
                self._cache[block] = read_block(self._store.directory, block), self._rows_of(block)
                while len(self._cache) > _NUM_CACHED:
                    self._cache.popitem(last=False)
            self._cache.move_to_end(block)
            return self._cache[block]

    def _file(self, block: int) -> Path:
        kind = "packed" if self._pack else "single"
        return self._store.directory / f"{block:06d}.rows{VERSION}-{kind}-{self._length}"

    def _num_rows(self, block: int) -> int:
        path = self._file(block)
        try:
            with open_file(path) as file:
                _, num_rows, num_pieces = np.frombuffer(file.read(24), "<i8").tolist()
            # The size alone is checked here. The checksum is checked when rows are read.
            if path.stat().st_size == 8 * (4 + num_rows + 2 * num_pieces):
                return num_rows
        except (OSError, ValueError):
            pass
        return len(self._rows_of(block).first) - 1

    def _rows_of(self, block: int) -> Rows:
        rows = _read(self._file(block))
        if rows is None:
            lengths = read_block(self._store.directory, block).lengths
            rows = (packed if self._pack else one_by_one)(lengths, self._length)
            write_alone(self._file(block), _as_bytes(rows))
        return rows


def _as_bytes(rows: Rows) -> bytes:
    sizes = np.array([len(rows.first) - 1, len(rows.starts)])
    content = np.concatenate([sizes, *rows]).astype("<i8").tobytes()
    return np.array([crc32(content)], "<i8").tobytes() + content


def _read(path: Path) -> Rows | None:
    """Return the rows in a file; None if it is not there, or damaged."""
    try:
        numbers = np.frombuffer(read_file(path), "<i8")
    except (OSError, ValueError):
        return None
    if len(numbers) < 4 or crc32(numbers[1:].tobytes()) != numbers[0]:
        return None
    first = 3 + numbers[1] + 1
    return Rows(numbers[3:first], *np.split(numbers[first:], 2))
