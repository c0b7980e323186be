"""Reads seqax's training data, flat tokens, in seqax's order.

    data.zarr/train/          and data.zarr/validation/, zarr v2 groups
      .zattrs                 {"max_token_id": 31999}
      encoded_tokens/         uint32[tokens]: 2 * id, and 1 more for the first token of a sequence
      seq_starts/             uint64[sequences + 1]; not needed here, as the tokens say it, too

The tokens are cut into rows of one length, and these into read blocks. All follows from a seed: read blocks
are permuted and dealt to streams in turn; of each stream, as many read blocks as a shuffle buffer holds are
permuted row by row; and a batch has equally many rows of each stream.

Source: docs/flat-tokens.md and the description of the order in input_loader.py of github.com/MatX-inc/seqax.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.base._internal import location, read_each
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._formats.readers._seqax import open_flat_tokens
from meshwright.errors import DamagedError, InputError, UsageError


class FlatTokens:
    """Rows of seqax's flat tokens, in the order of its batches. `flat_tokens` opens them."""

    def __init__(
        self,
        tokens: LazyArray,
        max_token_id: int,
        *,
        length: int,
        batch_size: int,
        seed: int,
        streams: int,
        block_rows: int,
        buffer_blocks: int,
    ):
        num_blocks = tokens.shape[0] // length // block_rows // streams * streams
        if batch_size % streams or not num_blocks:
            raise UsageError(
                f"batch_size={batch_size} must be a multiple of streams={streams}, and each stream needs a "
                f"read block of {block_rows} rows; there are {num_blocks} for all.\n"
                "  Give the settings of the seqax run, or fewer streams and rows."
            )
        self._tokens, self._length, self._seed, self._streams = tokens, length, seed, streams
        self._block_rows, self._buffer_blocks, self._batch_size = block_rows, buffer_blocks, batch_size
        self._num_blocks, self._blocks = num_blocks, permutation(seed, num_blocks)
        self._buffers: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()
        self.max_token_id = max_token_id
        """The largest token that may occur; the model's vocabulary must have it."""

    def __len__(self) -> int:
        return self._num_blocks * self._block_rows // self._batch_size * self._batch_size

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {name: array[0] for name, array in self.__getitems__([index]).items()}

    def __getitems__(self, ids: Sequence[int]) -> dict[str, np.ndarray]:
        """Return rows as a batch; row `i` is row `i % batch_size` of seqax's step `i // batch_size`."""
        with self._lock:
            rows = np.stack([self._row(int(i)) for i in ids])
        starts, index = (rows & 1).astype(bool), np.arange(self._length)
        segments = np.cumsum(starts, axis=1) + ~starts[:, :1]
        begins = np.maximum.accumulate(np.where(starts, index, 0), axis=1)
        return {
            "tokens": (rows >> 1).astype(np.int32),
            "is_seq_start": starts,
            "segments": segments.astype(np.int32),
            "positions": (index - begins).astype(np.int32),
        }

    def _row(self, i: int) -> np.ndarray:
        step, within = divmod(i, self._batch_size)
        share = self._batch_size // self._streams
        stream, position = within // share, step * share + within % share
        number, row = divmod(position, self._buffer_blocks * self._block_rows)
        return self._buffer(stream, number)[row]

    def _buffer(self, stream: int, number: int) -> np.ndarray:
        """Return a shuffle buffer, uint32[rows, length]. One of each stream is kept, and the next."""
        if (stream, number) not in self._buffers:
            first = number * self._buffer_blocks
            last = min(first + self._buffer_blocks, self._num_blocks // self._streams)
            blocks = self._blocks[np.arange(first, last) * self._streams + stream]
            size = self._block_rows * self._length
            parts = [(slice(b * size, (b + 1) * size),) for b in blocks.tolist()]
            rows = np.concatenate(self._tokens.read_parts(parts)).reshape(-1, self._length)
            order = permutation(self._seed + 1 + number * self._streams + stream, len(rows))
            self._buffers[stream, number] = rows[order]
            while len(self._buffers) > 2 * self._streams:
                self._buffers.popitem(last=False)
        return self._buffers[stream, number]


def permutation(seed: int, size: int) -> np.ndarray:
    """Return seqax's permutation of `size` numbers, int64[size].

    It is a shuffle by Fisher and Yates from the last place on. The place to swap with is a number of NumPy's
    Philox generator, modulo the number of places left.
    """
    swaps = np.random.Philox(seed).random_raw(size) % np.arange(1, size + 1, dtype=np.uint64)
    order = list(range(size))
    for i, j in zip(reversed(range(size)), swaps[::-1].tolist(), strict=True):
        order[i], order[j] = order[j], order[i]
    return np.array(order, np.int64)


def flat_tokens(
    path: str | Path,
    *,
    length: int,
    batch_size: int,
    seed: int,
    streams: int,
    sequences_per_read_block: int,
    read_blocks_per_shuffle_buffer: int,
) -> FlatTokens:
    """Return seqax's flat tokens as examples, in its order if `mw.batches(…, seed=None)` reads them.

    The arguments are those of a seqax run with `sequence_packing: true`. Step `n` of seqax has the rows
    `n * batch_size` and following, so a run continues anywhere. Where seqax ends, a new epoch begins, in the
    same order.

    A row has `tokens` (seqax's targets), `segments` and `positions`, all int32[length], and `is_seq_start`,
    bool[length].

    Args:
      path: A group with `encoded_tokens`, such as `data.zarr/train`, on a disk or in a store.
      length: Number of tokens of a row.
      batch_size: Number of rows of a batch.
      seed: Seed of the order.
      streams: Number of streams, each of which is shuffled by itself.
      sequences_per_read_block: Number of rows of a read block.
      read_blocks_per_shuffle_buffer: Number of read blocks that a stream shuffles at once.

    Raises:
      InputError: There are no flat tokens.
      UsageError: TensorStore is not installed, or the settings do not fit.

    Example:
      >>> import zarr
      >>> group = zarr.create_group("train", zarr_format=2, attributes={"max_token_id": 15})
      >>> _ = group.create_array("encoded_tokens", data=np.arange(32, dtype=np.uint32))
      >>> _ = group.create_array("seq_starts", data=np.array([0, 32], np.uint64))
      >>> blocks = {"streams": 1, "sequences_per_read_block": 2, "read_blocks_per_shuffle_buffer": 1}
      >>> examples = mw.checkpoints.flat_tokens("train", length=4, batch_size=2, seed=0, **blocks)
      >>> len(examples), examples[0]["tokens"].shape
      (8, (4,))
    """
    directory = location(path)
    tokens = open_flat_tokens(directory)
    if tokens is None:
        raise InputError(
            f"{directory} has no flat tokens of seqax: there is no encoded_tokens.\n"
            "  Give the group of a split, such as data.zarr/train."
        )
    try:
        max_token_id = json.loads(read_each([directory / ".zattrs"])[0])["max_token_id"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DamagedError(f"{directory}/.zattrs has no max_token_id: {error}.") from None
    return FlatTokens(
        tokens,
        max_token_id,
        length=length,
        batch_size=batch_size,
        seed=seed,
        streams=streams,
        block_rows=sequences_per_read_block,
        buffer_blocks=read_blocks_per_shuffle_buffer,
    )
