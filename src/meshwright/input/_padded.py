"""Every example once, in order, in batches of one shape: for evaluation."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.input._device import as_global, local_rows
from meshwright.input._source import as_source, read_rows

PyTree = Any


def padded_batches(
    examples: Any, batch_size: int, sharding: NamedSharding
) -> Iterator[tuple[PyTree, np.ndarray | jax.Array]]:
    """Yield `(batch, weights)` over all `examples`, once and in order.

    The last batch is filled up with copies of the last example, whose weights are 0.

    Args: as `batches`.

    Yields:
      A global batch, and float32[batch_size]: 1 for an example that counts, 0 for a filler.
    """
    source = as_source(examples)
    rows = local_rows(batch_size, sharding)
    place = as_global(batch_size, sharding) if jax.process_count() > 1 else lambda batch: batch
    for start in range(0, len(source), batch_size):
        ids = start + rows
        counted = (ids < len(source)).astype(np.float32)
        yield place((read_rows(source, np.minimum(ids, len(source) - 1)), counted))
