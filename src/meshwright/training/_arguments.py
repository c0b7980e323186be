"""The arguments of a step: their shapes and shardings, and errors for those that do not fit.

The state keeps its own shardings, and batches get those of the layout.
"""

import math
from typing import Any

import jax
import numpy as np
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
        # numpy's float64 and int64 become 32 bits wide.
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)
        return jax.ShapeDtypeStruct(x.shape, dtype, sharding=sharding)

    return tree.map_named(placed_leaf, tree.abstract(batch))


def refuse_donated(state: Any) -> None:
    """Check that the state was not donated to an earlier step. Only the array `step` is checked, if any."""
    # With several devices, XLA's CPU client dies of a segmentation fault if it gets donated arrays
    # (jaxlib 0.10.2). A step donates all arrays of a state together, and to check all would cost time.
    count = getattr(state, "step", None)
    if isinstance(count, jax.Array) and count.is_deleted():
        raise UsageError(
            "this state was given to a step before, which took its arrays.\n"
            "  Go on with the one that the step returned: state, metrics = step(state, batch)."
        )


Shapes = tuple[tuple[int, ...], ...]


def shapes_of(batch: PyTree) -> Shapes:
    """Return the shapes of all leaves."""
    return tuple(np.shape(x) for x in jax.tree.leaves(batch))


def differ_in_shape_only(first: PyTree, second: PyTree) -> bool:
    """Return whether two batches have the same arrays, of the same dtypes and numbers of dimensions."""
    return _kinds(first) == _kinds(second) and shapes_of(first) != shapes_of(second)


def changed(expected: PyTree, batch: PyTree) -> UsageError | None:
    """Return the error for a batch that differs from the one compiled for; None if they do not differ."""
    changes = tree.differences(expected, batch)
    if not changes:
        return None
    return UsageError(
        f"the batch changed since the step was compiled: {changes}.\n"
        "  Give every batch the same arrays, of the same dtypes, or make another step for the others."
    )


def undeclared(expected: PyTree, batch: PyTree) -> UsageError:
    """Return the error for a batch of a new shape in the middle of a run that does not compile for it."""
    return UsageError(
        "a batch came of a shape that the step is not compiled for: "
        f"{tree.differences(expected, batch)}.\n  With several processes, or with compile.late='refuse', all "
        "shapes must be known before the first step: mw.data.Bucketed(examples, lengths, buckets) knows "
        "them, mw.data.Batched(loader, shapes=[...]) names them, and Step.compile compiles for one. Or give "
        "every batch one shape."
    )


def _kinds(batch: PyTree) -> dict[str, tuple[np.dtype, int]]:
    named = tree.named_leaves(tree.abstract(batch))
    return {name: (jax.dtypes.canonicalize_dtype(x.dtype), x.ndim) for name, x in named.items()}
