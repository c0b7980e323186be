import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from meshwright.checkpoints._arrays._diff import diff
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import DamagedError


@pytest.fixture
def compare(tmp_path):
    """Return a function that saves two states and says in what their checkpoints differ, by name."""

    def both(a, b):
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, a)
            checkpoints.save(2, b)
        sources = [open_source(tmp_path / f"step_{step:08d}") for step in (1, 2)]
        return {difference.name: difference for difference in diff(*sources)}

    return both


def test_a_state_does_not_differ_from_itself(compare, make_state):
    assert compare(make_state(), make_state()) == {}


def test_every_array_of_another_state_differs_but_the_step(compare, make_state):
    assert compare(make_state(1), make_state(2)).keys() == {
        "params/w",
        "params/b",
        "opt_state/0",
        "opt_state/1",
    }


def test_what_one_lacks_is_a_difference(compare):
    found = compare({"a": 1, "both": 2}, {"b": 1, "both": 2})
    assert {name: (one.a is None, one.b is None) for name, one in found.items()} == {
        "a": (False, True),
        "b": (True, False),
    }


def test_another_shape_is_a_difference_without_values(compare):
    [found] = compare({"x": np.zeros(3)}, {"x": np.zeros((3, 1))}).values()
    assert (found.a.shape, found.b.shape, found.num_differing, found.largest) == ((3,), (3, 1), None, None)


def test_another_dtype_is_a_difference_even_where_the_values_are_equal(compare):
    [found] = compare({"x": np.ones(3, np.float32)}, {"x": np.ones(3, jnp.bfloat16)}).values()
    assert (found.num_differing, found.largest) == (0, 0)


@pytest.mark.parametrize(
    ("a", "b", "num_differing", "largest"),
    [
        (np.float32([1, 2, 3]), np.float32([1, 2.5, 1]), 2, 2.0),
        (np.float32([1, np.nan]), np.float32([2, np.nan]), 1, 1.0),
        (np.float32([1, np.nan]), np.float32([1, 0]), 1, np.nan),
        (np.float32([np.inf, 0]), np.float32([-np.inf, 0]), 1, np.inf),
        (np.float32([0.0]), np.float32([-0.0]), 1, 0.0),
        (np.array([2**63 - 1]), np.array([2**63 - 2]), 1, 1.0),
        (np.uint8([0, 255]), np.uint8([255, 0]), 2, 255.0),
        (np.array([True, False]), np.array([False, False]), 1, 1.0),
        (np.complex64([3 + 4j]), np.complex64([0]), 1, 5.0),
        (np.float32([1, 2]), np.array([1, 5], jnp.bfloat16), 1, 3.0),
        (np.array([3, -3], jnp.int4), np.array([3, 3], jnp.int4), 1, 6.0),
    ],
)
def test_values_are_counted_and_the_largest_difference_is_told(compare, a, b, num_differing, largest):
    found = compare({"x": a}, {"x": b})["x"]
    assert found.num_differing == num_differing
    np.testing.assert_equal(found.largest, largest)


def test_large_arrays_are_compared_block_by_block(compare):
    a, b = np.zeros(5 << 20), np.zeros(5 << 20)  # 40 MB: three blocks
    b[[0, -1]] = 1, 2
    found = compare({"x": a}, {"x": b})["x"]
    assert (found.num_differing, found.largest) == (2, 2.0)


def test_damage_is_not_taken_for_a_difference(save):
    checkpoint = save({"x": np.zeros(10)})
    flip_a_bit(checkpoint / DATA_FILE, chunks_of(checkpoint, "x")[0][1])
    with pytest.raises(DamagedError):
        diff(open_source(checkpoint), open_source(checkpoint))


def test_what_only_one_has_comes_in_its_order():
    names = [f"n{number}" for number in (3, 1, 9, 2, 7, 5)]
    a, b = ({name: np.ones(1) for name in part} for part in (names[:3], names[3:]))
    assert [each.name for each in diff(as_source(a, "a"), as_source(b, "b"))] == names


def test_tens_of_thousands_of_arrays_are_compared():
    arrays = as_source({f"n{number}": np.ones(1) for number in range(20_000)}, "x")
    assert diff(arrays, arrays) == []


def test_a_comparison_takes_little_memory():
    def ones(dtype):
        shape = (1 << 24,)
        read = lambda index: np.ones(len(range(shape[0])[index[0]]), dtype)
        return as_source({"w": LazyArray(shape, np.dtype(dtype), read)}, "ones")

    tracemalloc.start()
    (difference,) = diff(ones(np.float32), ones(jnp.bfloat16))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert difference.num_differing == 0
    assert peak < 64 << 20  # two slabs of each, and the numbers of a part of them
