"""Real checkpoints of other systems, where they lie beside the project, and what is expected of them."""

from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from meshwright import tree
from meshwright.checkpoint import restore

FIXTURES = Path(__file__).parents[4] / "shared/fixtures"

needs_fixtures = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason=f"the real checkpoints are not there: {FIXTURES}"
)


def expected(name):
    """Return the arrays of a file of expected values; those called `…::bf16` are bits of bfloat16."""
    with np.load(FIXTURES / name) as file:
        arrays = {key: file[key] for key in file.files}
    return {
        key.removesuffix("::bf16"): x.view(ml_dtypes.bfloat16) if key.endswith("::bf16") else x
        for key, x in arrays.items()
    }


def split(mesh, shape):
    """Return a sharding of an array of this shape that splits what it can."""
    axes, spec = list(mesh.axis_names), []
    for size in shape:
        fitting = next((axis for axis in axes if size and size % mesh.shape[axis] == 0), None)
        spec.append(fitting)
        axes = [axis for axis in axes if axis != fitting]
    return jax.NamedSharding(mesh, jax.P(*spec))


def restored(source, mesh=None):
    """Restore everything, whole, or over a mesh, and return it by name."""
    structs = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=mesh and split(mesh, x.shape))
        for name, x in source.arrays().items()
    }
    return tree.named_leaves(restore(source, tree.nested(structs)))


def assert_same(found, wanted):
    """Assert that two sets of named arrays have the same names, dtypes, shapes and bytes."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        value = np.asarray(found[name])
        assert (value.dtype, value.shape) == (array.dtype, array.shape), name
        assert value.tobytes() == array.tobytes(), name
