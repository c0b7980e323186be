"""What Hugging Face's own package writes, we read."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from meshwright.checkpoint import SafetensorsSource, export_safetensors
from meshwright.errors import CheckpointError, DamagedError

ARRAYS = {
    "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "b": np.arange(5, dtype=np.int8),
    "scalar": np.array(2.5),
    "empty": np.ones((0, 3), np.float16),
}


@pytest.fixture
def file(tmp_path):
    save_file(ARRAYS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def assert_whole(source, expected=ARRAYS):
    arrays = source.arrays()
    assert arrays.keys() == expected.keys()
    for name, x in expected.items():
        assert (arrays[name].shape, arrays[name].dtype) == (x.shape, x.dtype)
        np.testing.assert_array_equal(np.asarray(arrays[name]), x)


def test_a_file_or_its_directory_is_read(file):
    assert_whole(SafetensorsSource(file))
    assert_whole(SafetensorsSource(str(file.parent)))


@given(st.tuples(*[st.slices(size).filter(lambda part: part.step in (None, 1)) for size in (2, 3, 4)]))
def test_any_part_is_that_of_the_whole(tmp_path_factory, index):
    path = tmp_path_factory.getbasetemp() / "parts.safetensors"
    if not path.exists():
        save_file(ARRAYS, path)
    np.testing.assert_array_equal(SafetensorsSource(path).read("a.weight", index), ARRAYS["a.weight"][index])


def test_several_files_with_or_without_an_index_are_one(tmp_path):
    files = {"x-1.safetensors": {"a": np.ones(2)}, "x-2.safetensors": {"b": np.zeros(3)}}
    for name, arrays in files.items():
        save_file(arrays, tmp_path / name)
    expected = {"a": np.ones(2), "b": np.zeros(3)}
    assert_whole(SafetensorsSource(tmp_path), expected)
    save_file({"a": np.ones(7)}, tmp_path / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match="has a in several files"):
        SafetensorsSource(tmp_path)
    weight_map = {"a": "x-1.safetensors", "b": "x-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert_whole(SafetensorsSource(tmp_path), expected)
    (tmp_path / "x-2.safetensors").unlink()
    with pytest.raises(DamagedError, match=r"x-2.safetensors is missing"):
        SafetensorsSource(tmp_path)


def test_what_we_export_we_read(tmp_path):
    tree = {
        "layers": {"w": np.ones((4, 6), ml_dtypes.bfloat16), "n": np.arange(3, dtype=ml_dtypes.float8_e4m3fn)}
    }
    export_safetensors(tree, tmp_path, max_shard_bytes=10)
    assert_whole(SafetensorsSource(tmp_path), {f"layers.{name}": x for name, x in tree["layers"].items()})


@pytest.mark.parametrize("left", [0, 5, 60, -1])
def test_a_file_that_was_cut_short_is_found_before_anything_is_read(left, file):
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DamagedError, match="no whole safetensors file"):
        SafetensorsSource(file)


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, DamagedError, "cannot be float32"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}, DamagedError, "cannot be float32"),
        ({"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}, CheckpointError, "of type F4"),
        ({"shape": [2]}, DamagedError, "dtype"),
        (7, DamagedError, "no whole"),
    ],
)
def test_a_header_that_cannot_be_is_refused(entry, error, message, tmp_path):
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(error, match=message):
        SafetensorsSource(tmp_path)


def test_a_directory_without_any_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no safetensors file"):
        SafetensorsSource(tmp_path)
