"""What we export, Hugging Face's own package reads."""

import json
import struct
from types import SimpleNamespace

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base import _tree as tree
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError

NUMPY = {
    "BOOL": bool,
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "U16": np.uint16,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
}


def read(path):
    """Read a file with the package, whose NumPy side lacks types that its bytes have."""
    return {
        name: np.frombuffer(bytes(entry["data"]), NUMPY[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in safetensors.deserialize(path.read_bytes())
    }


def read_all(directory):
    """Read a directory as loaders do: the single file, or what the index says is where."""
    if (directory / "model.safetensors").exists():
        return read(directory / "model.safetensors")
    weight_map = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: read(directory / name) for name in set(weight_map.values())}
    return {name: files[file][name] for name, file in weight_map.items()}


@pytest.fixture(params=["tree", "checkpoint"])
def exported(request, state, save):
    return state if request.param == "tree" else open_source(save(state))


def test_a_small_state_is_one_file_that_the_package_reads(exported, state, tmp_path, same_bytes):
    assert export_safetensors(exported, tmp_path / "hf") == [tmp_path / "hf" / "model.safetensors"]
    with safetensors.safe_open(tmp_path / "hf" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
    ours = {name.replace("/", "."): leaf for name, leaf in tree.named_leaves(state).items()}
    assert same_bytes(read_all(tmp_path / "hf"), ours)


def test_a_large_state_is_several_files_and_an_index(exported, state, tmp_path, same_bytes):
    files = export_safetensors(exported, tmp_path / "hf", max_shard_bytes=600)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == tree.nbytes(state)
    assert [file.name for file in files] == [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    assert {file.name for file in files} == set(index["weight_map"].values())
    ours = {name.replace("/", "."): leaf for name, leaf in tree.named_leaves(state).items()}
    assert same_bytes(read_all(tmp_path / "hf"), ours)


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8), most=st.integers(1, 100))
def test_no_file_is_larger_than_asked_but_for_one_array(tmp_path_factory, sizes, most):
    directory = tmp_path_factory.mktemp("hf")
    arrays = {str(n): np.full(size, n, np.uint8) for n, size in enumerate(sizes)}
    for file in export_safetensors(arrays, directory, max_shard_bytes=most):
        held = [array.nbytes for array in read(file).values()]
        assert sum(held) <= most or len([nbytes for nbytes in held if nbytes]) == 1
    assert all((array == int(name)).all() for name, array in read_all(directory).items())
    assert {name: array.size for name, array in read_all(directory).items()} == {
        name: array.size for name, array in arrays.items()
    }


def test_every_type_that_the_format_has_keeps_its_bytes(tmp_path, same_bytes):
    arrays = {name: np.arange(1, 4).astype(dtype) for name, dtype in NUMPY.items()}
    arrays |= {"empty": np.zeros((0, 3), np.float32), "scalar": np.float32(3)}
    export_safetensors(arrays, tmp_path)
    assert same_bytes(read_all(tmp_path), arrays)


def test_integers_narrower_than_a_byte_become_bytes(tmp_path):
    export_safetensors({"x": jnp.array([-8, 7], jnp.int4), "y": jnp.array([0, 3], jnp.uint2)}, tmp_path)
    read_back = read_all(tmp_path)
    assert (read_back["x"].dtype, read_back["x"].tolist()) == (np.int8, [-8, 7])
    assert (read_back["y"].dtype, read_back["y"].tolist()) == (np.uint8, [0, 3])


def test_every_array_begins_on_a_multiple_of_its_items_size(tmp_path):
    export_safetensors({"a": np.zeros(3, np.int8), "b": np.zeros(3), "c": np.zeros(5, np.float16)}, tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    begins = {name: 8 + length + header[name]["data_offsets"][0] for name in "abc"}
    assert (begins["b"] % 8, begins["c"] % 2) == (0, 0)


def test_names_choose_and_rename(state, tmp_path):
    export_safetensors(
        state, tmp_path, names=lambda name: name.removeprefix("params/") if "params" in name else None
    )
    assert read_all(tmp_path).keys() == {"w", "b"}


def test_a_dtype_converts_floating_point_arrays_alone(tmp_path):
    export_safetensors({"x": np.float32([1.5]), "n": np.int32([3])}, tmp_path, dtype="bfloat16")
    read_back = read_all(tmp_path)
    assert (read_back["x"].dtype, read_back["x"]) == (ml_dtypes.bfloat16, 1.5)
    assert read_back["n"].dtype == np.int32


def test_a_number_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot convert x to float16: 1e\+06 does not fit"):
        export_safetensors({"x": np.float32([1, 1e6])}, tmp_path, dtype="float16")


def test_metadata_is_text_beside_the_format(tmp_path):
    export_safetensors({"x": np.zeros(1)}, tmp_path, metadata={"made": "today"})
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "made": "today"}
    with pytest.raises(UsageError, match="is text, but that of step is not"):
        export_safetensors({"x": np.zeros(1)}, tmp_path / "other", metadata={"step": 3})


def test_an_array_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.checkpoints._arrays._chunks._SLAB", 64)
    asked = []

    def read_rows(name, index):
        asked.append(index[0])
        return np.arange(100, dtype=np.int64).reshape(25, 4)[index]

    arrays = {"x": SimpleNamespace(shape=(25, 4), dtype=np.dtype(np.int64))}
    export_safetensors(SimpleNamespace(arrays=lambda: arrays, read=read_rows), tmp_path)
    assert max(part.stop - part.start for part in asked) == 2
    np.testing.assert_array_equal(read_all(tmp_path)["x"], np.arange(100).reshape(25, 4))


@pytest.mark.parametrize(
    ("arrays", "options", "said"),
    [
        ({"a": {"b": 1}, "a.b": 2}, {}, "a.b, a/b would all be called a.b|a/b, a.b would all be called a.b"),
        (
            {"a": np.zeros(1, ml_dtypes.float4_e2m1fn)},
            {},
            "a is of type float4_e2m1fn, which safetensors has",
        ),
        ({"a": 1}, {"names": lambda _: None}, "nothing to export"),
        ({"a": 1}, {"names": lambda _: "__metadata__"}, "a cannot be called __metadata__"),
        ({"a": 1}, {"dtype": "int8"}, "cannot convert to int8"),
        ({"a": 1}, {"dtype": "bfloat17"}, "there is no dtype .bfloat17"),
    ],
)
def test_what_cannot_be_exported_is_told_before_anything_is_written(tmp_path, arrays, options, said):
    with pytest.raises(UsageError, match=said):
        export_safetensors(arrays, tmp_path / "hf", **options)
    assert not (tmp_path / "hf").exists()


def test_an_export_is_never_mixed_with_another(state, tmp_path):
    export_safetensors(state, tmp_path)
    with pytest.raises(UsageError, match=r"has model\.safetensors already"):
        export_safetensors(state, tmp_path, max_shard_bytes=600)


def test_a_failed_export_leaves_nothing_and_what_was_there_stays(state, save, tmp_path):
    checkpoint = save(state)
    last = json.loads((checkpoint / "manifest.json").read_text())["arrays"]["step"]["chunks"][-1]
    (data,) = checkpoint.glob("data-*")
    content = bytearray(data.read_bytes())
    content[last[1]] ^= 1
    data.write_bytes(content)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    with pytest.raises(CheckpointError, match="CRC-32"):
        export_safetensors(open_source(checkpoint), tmp_path / "hf", max_shard_bytes=100)
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["config.json"]
