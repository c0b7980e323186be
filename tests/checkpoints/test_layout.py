from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._format._layout import balance, layouts
from meshwright.errors import UsageError

held_chunks = st.lists(st.tuples(st.integers(0, 1000), st.frozensets(st.integers(0, 5), min_size=1)))


@given(held_chunks)
def test_each_chunk_is_written_by_a_process_that_holds_it(chunks):
    writers = balance(chunks)
    assert len(writers) == len(chunks)
    assert all(writer in holders for writer, (_, holders) in zip(writers, chunks, strict=True))


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 6))
def test_what_all_hold_is_shared_out_to_within_the_largest_chunk(sizes, num_processes):
    everyone = frozenset(range(num_processes))
    load = Counter(dict.fromkeys(everyone, 0))
    for writer, size in zip(balance([(size, everyone) for size in sizes]), sizes, strict=True):
        load[writer] += size
    assert max(load.values()) - min(load.values()) <= max(sizes)


def test_the_one_with_less_of_its_own_writes_what_is_shared():
    assert balance([(10, frozenset({0, 1})), (10, frozenset({0}))]) == [1, 0]


@pytest.fixture
def leaf(mesh, over_processes):
    """Return a function that makes what stands for an array of int8 over several processes."""

    def make(shape, spec, num_processes):
        sharding = over_processes(NamedSharding(mesh, spec), num_processes)
        return SimpleNamespace(shape=shape, dtype=np.dtype("int8"), sharding=sharding)

    return make


@pytest.mark.parametrize("num_processes", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "spec", [P(), P("data"), P("tensor"), P(None, ("fsdp", "data")), P("fsdp", "tensor")], ids=str
)
def test_each_byte_is_written_once_however_often_it_is_held(leaf, spec, num_processes):
    [layout] = layouts({"x": leaf((8, 4), spec, num_processes)}, num_processes)
    assert len(layout.writers) * layout.chunk_nbytes == 8 * 4
    assert len(list(layout.positions())) == len(layout.writers)


def test_the_holders_of_a_shard_take_turns_writing(leaf):
    # "tensor" is the fastest axis of the mesh: each of 4 processes holds both shards.
    large = leaf((1 << 22,), P("tensor"), 4)
    arrays = layouts({"x": large, "y": large}, 4)
    assert sorted(writer for array in arrays for writer in array.writers) == [0, 1, 2, 3]


def test_small_neighbours_that_one_process_holds_are_one_chunk(leaf):
    spec = P(("data", "fsdp", "tensor"))
    of_one, of_two = (layouts({"x": leaf((64, 4), spec, n)}, n)[0] for n in (1, 2))
    assert (of_one.chunk_shape, of_one.writers) == ((64, 4), (0,))
    assert (of_two.chunk_shape, of_two.writers) == ((32, 4), (0, 1))


def test_chunks_are_joined_up_to_one_mebibyte(leaf):
    spec = P(("data", "fsdp", "tensor"))
    assert layouts({"x": leaf((2 << 20,), spec, 1)}, 1)[0].chunk_shape == (1 << 20,)
    assert layouts({"x": leaf((16 << 20,), spec, 1)}, 1)[0].chunk_shape == (2 << 20,)


def test_host_values_are_written_by_one_process():
    arrays = layouts({"a": np.zeros(100), "b": np.zeros(50), "c": np.zeros(60)}, 2)
    assert [array.writers for array in arrays] == [(0,), (1,), (1,)]


def test_leaves_that_cannot_be_saved_are_all_listed():
    with pytest.raises(UsageError, match=r"flags: object\n  name: <U4\n.*`extra`"):
        layouts({"flags": np.array([None]), "name": "mlp1", "w": np.zeros(3)}, 1)
