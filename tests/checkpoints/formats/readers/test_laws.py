"""What holds for every reader."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from checkpoints.formats.readers import written
from meshwright.base import _tree as tree
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import stored_names
from meshwright.checkpoints._formats._open import open_source


def slices(size):
    ends = st.tuples(st.integers(0, size), st.integers(0, size))
    return ends.map(lambda pair: slice(min(pair), max(pair)))


@given(data=st.data())
def test_a_slice_is_the_slice_of_the_whole(foreign, data):
    place, held = foreign
    source = open_source(place)
    name = data.draw(st.sampled_from(sorted(held)))
    index, array = data.draw(st.tuples(*map(slices, held[name].shape))), held[name]
    part = source.read(stored(source, name), index)
    assert (part.dtype, part.shape) == (array.dtype, array[index].shape)
    assert part.tobytes() == array[index].tobytes()


@pytest.mark.parametrize("spec", [P(), P(("data", "fsdp", "tensor"))])
def test_every_leaf_is_restored_whole_and_over_eight_devices(foreign, mesh, spec, same_bytes):
    place, held = foreign

    def struct(array):
        splits = array.ndim and array.dtype.itemsize < 8 and array.shape[0] in (8, 16)
        sharding = NamedSharding(mesh, spec) if splits else None
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    restored = restore(open_source(place), tree.nested({name: struct(x) for name, x in held.items()}))
    assert same_bytes(tree.named_leaves(restored), {name: held[name] for name in tree.named_leaves(restored)})


def test_what_is_found_is_said(foreign):
    place, held = foreign
    source = open_source(place)
    assert str(source).endswith(f" ({source.format})")
    assert sorted(source.arrays()) == sorted(stored(source, name) for name in held)


def stored(source, name):
    return stored_names(source, [name])[name]


def put(place, address):
    """Copy a file, or what is in a directory, to an address, and return that of the copy."""
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    for file in files:
        (location(address) / str(file.relative_to(place.parent))).put(file.read_bytes())
    return f"{address}/{place.name}"


def test_a_store_is_read_as_a_directory_is(foreign):
    place, held = foreign
    copied = put(place, f"memory://foreign/{place.parent.name}")
    source = open_source(copied)
    assert str(source).startswith(copied)
    for name, array in held.items():
        assert np.asarray(source.arrays()[stored(source, name)]).tobytes() == array.tobytes()


@pytest.mark.parametrize("write", [written.safetensors, written.npz_compressed, written.seqax, written.t5x])
@pytest.mark.daily(2)
def test_stores_elsewhere_are_read_too(write, tmp_path, s3_run):
    source = open_source(put(write(tmp_path), s3_run))
    w = source.read(stored(source, "params/w"), (slice(3, 9), slice(2, 4)))
    assert w.tolist() == written.ARRAYS["params/w"][3:9, 2:4].tolist()


def test_a_database_elsewhere_is_read_too(golden, s3_run):
    source = open_source(put(golden / "0.12.8/tree_ocdbt", s3_run))
    assert source.read("params/w", (slice(1), slice(3))).tolist() == [[0, 1, 2]]
