import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.engine._predict._outputs import fingerprint

LAYOUT = mw.Layout(mw.make_mesh("data=2,tensor=4"))
ARRAYS = {"w": np.arange(32, dtype=np.float32).reshape(8, 4), "b": np.array([0, 0.25], jnp.bfloat16)}


def of(arrays):
    return fingerprint(jax.tree.map(jnp.asarray, arrays), LAYOUT)


@pytest.mark.parametrize(
    "spec", [P(), P("data"), P("tensor", "data"), P(None, ("data",)), P(("tensor", "data"))]
)
def test_equal_values_have_one_fingerprint_wherever_they_are(spec):
    placed = {**ARRAYS, "w": jax.device_put(ARRAYS["w"], NamedSharding(LAYOUT.mesh, spec))}
    assert fingerprint(jax.tree.map(jnp.asarray, placed), LAYOUT) == of(ARRAYS)


CHANGES = {
    "one value": {**ARRAYS, "w": ARRAYS["w"] + (np.arange(32).reshape(8, 4) == 30) * np.float32(1e-6)},
    "a sign": {**ARRAYS, "w": ARRAYS["w"] * np.where(np.arange(4) == 2, -1, 1).astype(np.float32)},
    "the order": {**ARRAYS, "w": ARRAYS["w"][::-1]},
    "two values changed places": {**ARRAYS, "b": ARRAYS["b"][::-1]},
    "a shape": {**ARRAYS, "w": ARRAYS["w"].reshape(4, 8)},
    "a dtype": {**ARRAYS, "b": ARRAYS["b"].astype(np.float32)},
    "a name": {"w": ARRAYS["w"], "bias": ARRAYS["b"]},
    "a leaf more": {**ARRAYS, "c": np.zeros(0)},
}


@pytest.mark.parametrize("change", CHANGES)
def test_anything_that_changes_changes_it(change):
    assert of(CHANGES[change]) != of(ARRAYS)


def test_arrays_of_all_dtypes_have_one():
    keys = (jax.random.key(0), jax.random.key(1))
    arrays = [jnp.zeros(2, dtype) for dtype in (bool, jnp.int4, np.complex64)]
    assert len({of(array) for array in (*arrays, *keys)}) == 5


def test_of_nothing_there_is_one_too():
    assert of({}) == of({}) != of({"w": np.zeros(0)})
