"""The shapes of batches, and the errors for a batch of another shape than a step was compiled for."""

import jax
import numpy as np

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError

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
