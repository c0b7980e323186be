import tracemalloc

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._arrays._lazy import LazyArray, concatenate, stack
from meshwright.checkpoints._arrays._restore import restore, restore_lazily
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._convert import with_changes
from meshwright.checkpoints._format._layout import layouts
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import MeshwrightError, UsageError


@pytest.fixture
def watched():
    """An array of 4 × 6, and the list of what was read of it."""
    whole, reads = np.arange(24).reshape(4, 6), []

    def read(index):
        reads.append(index)
        return whole[index].copy()

    return LazyArray(whole.shape, whole.dtype, read), whole, reads


def test_shape_dtype_and_size_are_known_before_anything_is_read(watched):
    array, _, reads = watched
    derived = stack([array.astype("float32")[1:, 2]] * 2)
    assert (derived.shape, derived.dtype, derived.ndim, derived.nbytes) == ((2, 3), np.float32, 2, 24)
    assert not reads


def test_only_the_part_that_is_asked_for_is_read(watched):
    array, whole, reads = watched
    assert np.asarray(array[1:][:2, 3]).tolist() == whole[1:][:2, 3].tolist()
    assert reads == [(slice(1, 3), slice(3, 4))]


parts = st.one_of(st.integers(-4, 3), st.slices(4).filter(lambda part: part.step in (None, 1)))


@given(st.lists(parts, max_size=3), st.lists(parts, max_size=2))
def test_a_part_of_a_part_is_numpys(first, then):
    whole = np.arange(64).reshape(4, 4, 4)
    array = as_source({"x": whole}, "memory").arrays()["x"]
    try:
        expected = whole[tuple(first)][tuple(then)]
    except IndexError:
        return
    np.testing.assert_array_equal(np.asarray(array[tuple(first)][tuple(then)]), expected)


@given(st.tuples(*[st.slices(3).filter(lambda part: part.step in (None, 1))] * 3))
def test_a_part_of_a_stack_is_numpys(index):
    whole = np.arange(27).reshape(3, 3, 3)
    stacked = stack([as_source({"x": each}, "memory").arrays()["x"] for each in whole])
    np.testing.assert_array_equal(stacked.read(index), whole[index])


@pytest.mark.parametrize("index", [slice(None, None, 2), [0, 1], (0, 0, 0), None])
def test_what_cannot_be_taken_lazily_is_said(watched, index):
    with pytest.raises(UsageError, match=r"a lazy array|too many"):
        watched[0][index]


def test_arrays_that_differ_are_not_stacked(watched):
    array, *_ = watched
    with pytest.raises(UsageError, match="cannot stack arrays of 2 kinds"):
        stack([array, array[1:]])
    with pytest.raises(UsageError, match="of 0 kinds"):
        stack([])


@pytest.fixture
def apart():
    return as_source({f"layers/{i}/w": np.full((4, 2), i, np.int32) for i in range(3)}, "apart")


def test_layers_saved_apart_are_restored_stacked(mesh, apart):
    stacked = as_source({"layers/w": stack(list(apart.arrays().values()))}, "stacked")
    sharding = NamedSharding(mesh, P(None, "fsdp"))
    target = {"layers": {"w": jax.ShapeDtypeStruct((3, 4, 2), np.int32, sharding=sharding)}}
    layers = restore(stacked, target)["layers"]["w"]
    assert np.asarray(layers)[:, 0, 0].tolist() == [0, 1, 2]
    assert layers.sharding == sharding


def test_layers_saved_stacked_are_restored_apart(apart):
    stacked = stack(list(apart.arrays().values()))
    split = as_source({str(i): stacked[i] for i in range(3)}, "split")
    assert restore(split, {"2": np.zeros((4, 2), np.int32)}, ignore="0|1")["2"].tolist() == [[2, 2]] * 4


def test_a_lazy_state_says_what_it_is_without_its_data_file(state, save):
    checkpoint = save(state)
    (checkpoint / "data-00000-of-00001.zarr.zip").unlink()
    lazy = restore_lazily(open_source(checkpoint), state)
    assert (lazy["params"]["w"].shape, lazy["params"]["w"].dtype.name) == ((16, 8), "bfloat16")
    with pytest.raises(MeshwrightError, match="the file is missing"):
        np.asarray(lazy["params"]["w"])


def test_a_lazy_state_is_saved_again_and_equal(state, save, tmp_path, same_bytes):
    lazy = restore_lazily(open_source(save(state)), state)
    with Checkpoints(tmp_path / "again") as checkpoints:
        checkpoints.save(801, lazy)
    assert same_bytes(restore(open_source(tmp_path / "again"), state), state)


def test_a_lazy_state_is_saved_in_pieces(tmp_path):
    piece, reads = 1 << 20, []

    def read(index):
        reads.append(index[0])
        return np.zeros([index[0].stop - index[0].start, piece], np.uint8)

    with Checkpoints(tmp_path) as checkpoints:
        tracemalloc.start()
        checkpoints.save(1, {"x": LazyArray((287, piece), np.dtype("uint8"), read)})
        checkpoints.wait()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [part.stop - part.start for part in reads] == [41] * 7
    assert peak < 200 * piece


def test_the_pieces_of_a_lazy_array_are_shared_out_between_processes():
    array = LazyArray((160, 1 << 20), np.dtype("uint8"), lambda index: np.zeros(0))
    assert layouts({"x": array}, 2)[0].writers == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ((50021, 768), (50021, 256)),  # a prime number of rows
        ((4, 1 << 28), (4, 1 << 22)),
        ((999_999_937,), (999_999_937,)),  # one piece rather than a thousand million
        ((3,), (3,)),
        ((), ()),
        ((0, 5), (0, 5)),
    ],
)
def test_pieces_are_equal_and_neither_large_nor_many(shape, pieces):
    assert LazyArray(shape, np.dtype("float32"), np.zeros).chunk_shape == pieces


def test_damage_found_while_a_lazy_state_is_saved_leaves_no_checkpoint(state, save, tmp_path):
    checkpoint = save(state)
    lazy = restore_lazily(open_source(checkpoint), state)
    (checkpoint / "data-00000-of-00001.zarr.zip").unlink()
    with (
        pytest.raises(MeshwrightError, match=r"save of step 801 failed(.|\n)*the file is missing"),
        Checkpoints(tmp_path / "again") as checkpoints,
    ):
        checkpoints.save(801, lazy)
    assert checkpoints.latest() is None


@given(st.data())
def test_what_is_turned_shaped_and_joined_is_numpys_in_any_part(data):
    whole = np.arange(48).reshape(4, 3, 4)
    array = as_source({"x": whole}, "memory").arrays()["x"]
    shape = data.draw(st.sampled_from([(48,), (12, 4), (4, 12), (2, 2, 12), (6, 8), (3, 4, 2, 2)]))
    made, expected = data.draw(
        st.sampled_from(
            [
                (array.transpose(), whole.transpose()),
                (array.reshape(*shape), whole.reshape(shape)),
                (concatenate([array, array[:, :, 1:3]]), np.concatenate([whole, whole[..., 1:3]], axis=-1)),
                (stack([array, array[::1]])[:, 1], np.stack([whole, whole])[:, 1]),
            ]
        )
    )
    slices = [st.slices(size).filter(lambda part: part.step in (None, 1)) for size in expected.shape]
    indices = data.draw(st.lists(st.tuples(*slices), min_size=1, max_size=3))
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made.read(indices[0]), expected[indices[0]])
    for part, index in zip(made.read_parts(indices), indices, strict=True):
        np.testing.assert_array_equal(part, expected[index])


def test_a_part_of_another_shape_reads_the_rows_it_takes(watched):
    array, whole, reads = watched
    np.testing.assert_array_equal(np.asarray(array.reshape(8, 3)[2:4, :1]), whole.reshape(8, 3)[2:4, :1])
    assert reads == [(slice(1, 2), slice(None))]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.astype("float32"),
        lambda x: x.view("uint64"),
        lambda x: x.transpose().transpose(),
        lambda x: x.reshape(2, 12).reshape(4, 6),
        lambda x: x[:, :6],
        lambda x: stack([x, x])[1],
        lambda x: concatenate([x]),
        lambda x: with_changes(as_source({"x": x.astype("float32")}, "x"), dtype="bfloat16").arrays()["x"],
    ],
)
def test_what_the_parts_of_a_derived_array_share_is_read_once(make):
    whole, asked = np.arange(24).reshape(4, 6), []

    class Reader:
        def parts(self, indices):
            asked.append(len(indices))
            return [whole[index].copy() for index in indices]

    made = make(LazyArray(whole.shape, whole.dtype, Reader()))
    halves = made.read_parts([(slice(4), slice(3)), (slice(4), slice(3, 6))])
    assert np.concatenate(halves, axis=1).tolist() == whole.tolist()
    assert asked == [2]


def test_shapes_that_do_not_go_together_are_refused(watched):
    array, _, _ = watched
    with pytest.raises(UsageError, match=r"\(4, 6\) to \(5, 5\): the sizes differ"):
        array.reshape(5, 5)
    with pytest.raises(UsageError, match="cannot join arrays of 2 kinds"):
        concatenate([array, array[1:]])


def test_a_large_matrix_is_turned_whole():
    whole = np.arange(300 * 130).reshape(300, 130)
    array = as_source({"x": whole}, "memory").arrays()["x"].transpose()
    np.testing.assert_array_equal(np.asarray(array), whole.T)
    np.testing.assert_array_equal(np.asarray(array[5:129, 7:]), whole.T[5:129, 7:])
