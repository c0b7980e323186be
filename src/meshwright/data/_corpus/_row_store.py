"""Rows of a store's tokens, of which there are more while documents are tokenized.

How a block's rows are filled is kept beside the block, `000000.rows1-packed-2048`: int64 numbers, first the
CRC-32 of the others, the number of rows and that of pieces, then the fields of `Rows`. Such a file that is
damaged is made again.
"""

import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np

from meshwright.base._internal import crc32, open_file, read_file
from meshwright.data._corpus._blocks import Block, read_block, write_alone
from meshwright.data._corpus._packing import VERSION, Rows, filled_rows, one_by_one, packed
from meshwright.data._corpus._store import Store

_NUM_CACHED = 64
"""Blocks whose rows are kept in memory, and whose tokens are mapped."""


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
            arrays = filled_rows(content.tokens, rows, (numbers - begins)[index], self._length, content.token_weights)
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
