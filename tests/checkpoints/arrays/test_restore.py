import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.base import _tree as tree
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError

DTYPES = (
    "bool int4 int8 int16 int32 int64 uint4 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128 bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn"
)


def spread(state, shape):
    """Return the target that asks for `state` on a mesh of another shape, cut wherever it divides."""
    mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), devices=jax.devices()[: np.prod(shape)])

    def one(leaf):
        axes = list(mesh.shape)[: leaf.ndim]
        spec = P(
            *(axis if leaf.shape[dim] % mesh.shape[axis] == 0 else None for dim, axis in enumerate(axes))
        )
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(one, state)


@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 8, 1), (8, 1, 1), (1, 2, 4), (1, 1, 1)], ids=str)
def test_a_state_comes_back_bit_for_bit_on_any_mesh(state, save, same_bytes, shape):
    target = spread(state, shape)
    restored = restore(open_source(save(state)), target)
    assert same_bytes(restored, state)
    assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, target)


def test_arrays_of_every_dtype_come_back(save, same_bytes):
    random = np.random.default_rng(0)
    state = {name: random.integers(0, 2, (3, 5)).astype(name) for name in DTYPES.split()}
    restored = restore(open_source(save(state)), state)
    assert same_bytes(restored, state)


@pytest.mark.parametrize("dtype", ["bool", "int4", "bfloat16", "float8_e5m2"])
def test_sharded_arrays_of_narrow_dtypes_come_back(mesh, save, same_bytes, dtype):
    array = jax.device_put(jnp.arange(16).reshape(8, 2) % 2, NamedSharding(mesh, P("fsdp", "tensor"))).astype(
        dtype
    )
    assert same_bytes(restore(open_source(save([array])), [array]), [array])


def test_numbers_come_back_as_numbers(save):
    state = [3, 0.1, False, 1j]
    restored = restore(open_source(save(state)), state)
    assert restored == state
    assert [type(leaf) for leaf in restored] == [int, float, bool, complex]


def test_numpy_arrays_and_scalars_come_back_as_such(save, same_bytes):
    state = {"counts": np.arange(5), "best": np.float64(0.5), "columns": np.asfortranarray(np.eye(3, 2))}
    restored = restore(open_source(save(state)), state)
    assert same_bytes(restored, state)
    assert [type(restored[name]) for name in ("counts", "best", "columns")] == [
        np.ndarray,
        np.float64,
        np.ndarray,
    ]


def test_bytes_in_the_other_order_are_turned_round(save):
    state = {"x": np.arange(3, dtype=">i4")}
    assert restore(open_source(save(state)), state)["x"].tolist() == [0, 1, 2]


def test_arrays_without_elements_come_back(mesh, save, same_bytes):
    empty = jax.device_put(jnp.zeros((0, 4)), NamedSharding(mesh, P(None, "fsdp")))
    state = {"on_mesh": empty, "on_host": np.zeros((3, 0))}
    assert same_bytes(restore(open_source(save(state)), state), state)


def test_a_single_array_is_a_tree_too(save, same_bytes):
    assert same_bytes(restore(open_source(save(np.arange(4.0))), np.zeros(4)), np.arange(4.0))


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.text(), st.dictionaries(st.text(), st.integers(0, 9), min_size=1), min_size=1))
def test_any_text_may_be_a_name(state):
    with tempfile.TemporaryDirectory() as directory:
        with Checkpoints(directory) as checkpoints:
            checkpoints.save(1, state)
        assert restore(open_source(directory), state) == state


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_slice_of_the_source_is_the_slice_of_the_whole(source_and_whole, data):
    source, whole = source_and_whole
    index = tuple(
        data.draw(st.slices(size).filter(lambda part: part.step in (None, 1))) for size in whole.shape
    )
    np.testing.assert_array_equal(source.read("x", index), whole[index])


@pytest.fixture(scope="module")
def source_and_whole(mesh, tmp_path_factory):
    directory, whole = tmp_path_factory.mktemp("whole"), np.arange(16 * 6 * 4).reshape(16, 6, 4)
    with Checkpoints(directory) as checkpoints:
        checkpoints.save(1, {"x": jax.device_put(whole, NamedSharding(mesh, P(("fsdp", "data"), "tensor")))})
    return open_source(directory), whole


def test_all_that_does_not_fit_is_said_at_once_with_the_nearest_names(save):
    saved = {"layers": [{"query": np.zeros((2, 3)), "key": np.zeros(4)}], "step": np.int32(1), "old": 0}
    target = {"layers": [{"qery": np.zeros((2, 3)), "key": np.zeros(5, "float32")}], "step": np.int32(1)}
    with pytest.raises(CheckpointError) as error:
        restore(open_source(save(saved)), target)
    assert str(error.value).splitlines()[1:] == [
        "  layers/0/qery: in the target, but not in the checkpoint; did you mean layers/0/query?",
        "  layers/0/key: shape (4,) in the checkpoint, (5,) in the target",
        "  layers/0/key: dtype float64 in the checkpoint, float32 in the target",
        "  layers/0/query: in the checkpoint, but not in the target",
        "  old: in the checkpoint, but not in the target",
    ]


def test_a_part_that_several_devices_hold_is_read_once(mesh):
    reads, whole = [], np.arange(8.0, dtype=np.float32)
    array = LazyArray((8,), np.dtype("float32"), lambda index: (reads.append(index), whole[index])[1])
    sharding = NamedSharding(mesh, P("tensor"))
    source = as_source({"x": array}, "memory")
    restored = restore(source, {"x": jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)})
    assert len(reads) == 2
    np.testing.assert_array_equal(restored["x"], np.arange(8))


def test_a_restored_state_may_be_donated(make_state, save, same_bytes):
    step = jax.jit(lambda state: jax.tree.map(lambda x: x + 1, state), donate_argnums=0)
    state = make_state()
    source = open_source(save(state))
    target = tree.abstract(state)
    for_comparison = step(restore(source, target))
    assert same_bytes(step(step(restore(source, target))), step(for_comparison))
    assert same_bytes(restore(source, target), state)


def test_the_target_may_be_read_off_the_checkpoint(state, save, same_bytes):
    random = np.random.default_rng(0)
    state = state | {"each": {name: random.integers(0, 2, (3, 5)).astype(name) for name in DTYPES.split()}}
    source = open_source(save(state))
    restored = tree.named_leaves(restore(source, tree.nested(source.arrays())))
    assert same_bytes(restored, tree.named_leaves(state))
