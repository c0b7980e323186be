"""Other people's programs read our files."""

import json
import zipfile

import pytest
import tensorstore
import zarr

from meshwright.base import _tree as tree
from meshwright.checkpoints._checkpoints import Checkpoints


@pytest.fixture
def data_file(state, save):
    return save(state) / "data-00000-of-00001.zarr.zip"


def test_zarr_python_reads_a_data_file(state, data_file, same_bytes):
    arrays = tree.named_leaves(state)
    del arrays["params/w"]  # zarr-python has no bfloat16
    with zarr.storage.ZipStore(data_file, mode="r") as store:
        group = zarr.open_group(store, mode="r")
        assert all(same_bytes(group[name][...], array) for name, array in arrays.items())


def test_tensorstore_reads_a_data_file(state, data_file, same_bytes):
    for name, array in tree.named_leaves(state).items():
        base = {"driver": "file", "path": str(data_file)}
        kvstore = {"driver": "zip", "base": base, "path": f"{name}/"}
        store = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
        assert same_bytes(store.read().result(), array)


ODD_NAMES = ["", ".", "..", "...", "__x", "zarr.json", "a\\b", "nul\0l", "c", " ", "%", "a/b", "ünï"]


def test_zarr_python_reads_arrays_of_any_name(save):
    checkpoint = save({name: {name: number} for number, name in enumerate(ODD_NAMES)})
    with zarr.storage.ZipStore(checkpoint / "data-00000-of-00001.zarr.zip", mode="r") as store:
        members = zarr.open_group(store, mode="r").members(max_depth=None)
        numbers = [int(member[...]) for _, member in members if isinstance(member, zarr.Array)]
    assert sorted(numbers) == list(range(len(ODD_NAMES)))


def test_python_finds_every_checksum_right(data_file):
    with zipfile.ZipFile(data_file) as archive:
        assert archive.testzip() is None
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_metadata_stands_first_and_data_on_64_byte_boundaries(data_file):
    manifest = json.loads((data_file.parent / "manifest.json").read_text())
    offsets = [chunk[1] for array in manifest["arrays"].values() for chunk in array["chunks"]]
    with zipfile.ZipFile(data_file) as archive:
        is_metadata = [name.endswith("zarr.json") for name in archive.namelist()]
    assert is_metadata == sorted(is_metadata, reverse=True)
    assert {offset % 64 for offset in offsets} == {0}


def test_equal_states_give_equal_files(make_state, tmp_path):
    for name in ("a", "b"):
        with Checkpoints(tmp_path / name) as checkpoints:
            checkpoints.save(1, make_state(seed=3))
    file = "step_00000001/data-00000-of-00001.zarr.zip"
    assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
