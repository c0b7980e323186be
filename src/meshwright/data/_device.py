"""Rows of a global batch that this process holds, and global arrays made of them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree
from meshwright.errors import LayoutError


def local_rows(batch_size: int, sharding: NamedSharding) -> np.ndarray:
    """Return the rows of a global batch that this process's devices hold, int64[k], ascending.

    Args:
      batch_size: Number of examples in the global batch.
      sharding: Split of the batch, `Layout.batch_sharding`.

    Raises:
      LayoutError: The mesh does not divide `batch_size`.

    Example:
      >>> mw.data.local_rows(8, mw.Layout(mw.make_mesh("data=8")).batch_sharding)
      array([0, 1, 2, 3, 4, 5, 6, 7])
    """
    # Devices that differ only in other axes hold the same rows.
    ways = sharding.mesh.size // max(1, _copies(sharding))
    if batch_size % ways:
        raise LayoutError(
            f"a batch of {batch_size} examples cannot be split into {ways} equal parts, as the mesh "
            f"{dict(sharding.mesh.shape)} splits it ({sharding.spec}).\n"
            f"  Make the batch size a multiple of {ways}, or the mesh's batch axes smaller."
        )
    row_sets = [np.arange(batch_size)[rows] for (rows,) in _addressable(batch_size, sharding).values()]
    return np.unique(np.concatenate(row_sets))


def placing(batch_size: int, sharding: NamedSharding) -> Callable[[PyTree], PyTree]:
    """Return the function of `as_global`.

    In one process, a function that leaves arrays as they are, which is faster.
    """
    return as_global(batch_size, sharding) if jax.process_count() > 1 else lambda batch: batch


def as_global(batch_size: int, sharding: NamedSharding) -> Callable[[PyTree], PyTree]:
    """Return a function that makes global JAX arrays of this process's rows of a batch.

    Example:
      >>> to_global = mw.data._internal.as_global(8, mw.Layout(mw.make_mesh("data=8")).batch_sharding)
      >>> to_global({"x": np.ones((8, 2))})["x"].sharding.spec
      P('data',)
    """
    rows = local_rows(batch_size, sharding)
    # The slice of this process's rows that each device has, by the device's rows in the global batch.
    spans = {}
    for (device_rows,) in _addressable(batch_size, sharding).values():
        start, stop, _ = device_rows.indices(batch_size)
        first = int(np.searchsorted(rows, start))
        spans[start, stop] = slice(first, first + stop - start)

    def to_global(x: np.ndarray) -> jax.Array:
        def read(index: Any) -> np.ndarray:
            return x[spans[index[0].indices(batch_size)[:2]]]

        return jax.make_array_from_callback((batch_size, *x.shape[1:]), sharding, read)

    return lambda batch: jax.tree.map(to_global, batch)


def _addressable(batch_size: int, sharding: NamedSharding) -> dict[Any, tuple[slice]]:
    return sharding.addressable_devices_indices_map((batch_size,))  # type: ignore[return-value]


def _copies(sharding: NamedSharding) -> int:
    """Return the number of devices that hold each row."""
    used = {axis for entry in sharding.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
    unused = [size for axis, size in sharding.mesh.shape.items() if axis not in used]
    return int(np.prod(unused, dtype=np.int64))
