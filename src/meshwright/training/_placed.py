"""Shardings of a step's arguments: the state keeps its own, batches get those of the layout."""

import math
from typing import Any

import jax
from jax.sharding import NamedSharding

from meshwright.base._internal import PyTree, tree
from meshwright.errors import LayoutError, UsageError
from meshwright.parallel._internal import Layout


def shardings_of(state: PyTree, layout: Layout) -> PyTree:
    """Return the shardings of a state's leaves."""

    def sharding_of(name: str, x: Any) -> NamedSharding:
        sharding = getattr(x, "sharding", None)
        if not (isinstance(sharding, NamedSharding) and sharding.mesh == layout.mesh):
            raise LayoutError(
                f"state leaf {name!r} is not on the mesh {dict(layout.mesh.shape)}; "
                f"its sharding is {sharding}.\n  Place the state first: "
                "`mw.parallel.copy_to(state, layout.shardings(state))`."
            )
        return sharding

    return tree.map_named(sharding_of, state)


def placed(batch: PyTree, layout: Layout, microbatches: int) -> PyTree:
    """Return a global batch, of arrays or structs, as structs with the batch sharding of `layout`."""
    sharding, stages = layout.batch_sharding, layout.num_stages
    # The rows of a microbatch are not split over the stages, but those of a batch are.
    rows = layout.batch_ways // math.gcd(layout.batch_ways, stages)
    ways = math.lcm(rows * microbatches, layout.batch_ways)

    def placed_leaf(name: str, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        if not x.shape or x.shape[0] % ways:
            raise LayoutError(
                f"batch leaf {name or 'batch'!r} of shape {x.shape} does not divide: its first dimension "
                f"must be a multiple of {ways}\n  ({layout.batch_ways} ways over mesh "
                f"{dict(layout.mesh.shape)} × {microbatches} microbatches). "
                "Change the batch size, the mesh or microbatches."
            )
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)  # numpy's float64 and int64 become 32 bits wide
        return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

    return tree.map_named(placed_leaf, tree.abstract(batch))


def refuse_donated(state: Any) -> None:
    """Check that the state was not donated to an earlier step. Only the array `step` is checked, if any.

    With several devices, XLA's CPU client dies of a segmentation fault if it gets donated arrays
    (jaxlib 0.10.2). A step donates all arrays of a state together, and to check all would cost time.
    """
    count = getattr(state, "step", None)
    if isinstance(count, jax.Array) and count.is_deleted():
        raise UsageError(
            "this state was given to a step before, which took its arrays.\n"
            "  Go on with the one that the step returned: state, metrics = step(state, batch)."
        )
