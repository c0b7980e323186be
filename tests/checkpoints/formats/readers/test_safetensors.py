import json
import struct

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import save_file

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, DamagedError

W = np.arange(96, dtype=np.float32).reshape(16, 6)


@pytest.fixture
def file(tmp_path):
    save_file({"layer.w": W, "step": np.int64(7)[None]}, tmp_path / "x.safetensors", {"by": "somebody"})
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("where", ["", "x.safetensors"])
def test_a_file_is_opened_by_itself_or_by_its_directory(file, where):
    source = open_source(file.parent / where)
    assert (source.format, source.step, source.extra) == ("safetensors", None, {"by": "somebody"})
    assert str(source) == f"{file.parent / where} (safetensors)"
    assert np.array_equal(source.arrays()["layer.w"], W)


def test_a_file_is_known_by_its_content_and_not_by_its_name(file):
    other = file.rename(file.with_name("weights.bin"))
    assert open_source(other).read("layer.w", (slice(2, 3), slice(1, 4))).tolist() == [[13, 14, 15]]


def test_leaves_are_found_under_their_names_with_dots(file, mesh):
    sharding = NamedSharding(mesh, P("fsdp", "tensor"))
    target = {"layer": {"w": jax.ShapeDtypeStruct(W.shape, W.dtype, sharding=sharding)}}
    restored = restore(open_source(file), target, ignore="step")
    assert restored["layer"]["w"].sharding == sharding
    assert np.array_equal(restored["layer"]["w"], W)


def test_two_leaves_that_would_be_one_name_are_refused(file):
    with pytest.raises(CheckpointError, match=r"layer%?.* stores both as 'layer\.w'"):
        restore(open_source(file), {"layer": {"w": W}, "layer.w": W}, ignore="step")


def test_what_we_export_in_several_files_comes_back(tmp_path, same_bytes):
    state = {
        "params": [np.full((4, 3), number, ml_dtypes.bfloat16) for number in range(5)],
        "scale": np.float32(2).astype(ml_dtypes.float8_e4m3fn),
    }
    export_safetensors(state, tmp_path, max_shard_bytes=50)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert same_bytes(restore(open_source(tmp_path), state), state)


def rewritten(file, edit):
    """Write the file anew, with another header."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def test_a_file_that_was_cut_off_is_refused(file):
    whole = file.read_bytes()
    for nbytes, said in {
        len(whole) - 1: "but should have",
        40: "within its header",
        5: "before its header",
    }.items():
        file.write_bytes(whole[:nbytes])
        with pytest.raises(CheckpointError, match=said):
            open_source(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"shape": [16, 7]},
            r"layer\.w, F32\[16, 7\], has its bytes from 8 to 392, but should .* from 8 to 456",
        ),
        ({"shape": [16, -6]}, r"layer\.w, F32\[16, -6\]"),
        ({"data_offsets": [8, 5000]}, "from 8 to 5000, but should have them from 8 to 392"),
        ({"data_offsets": [4, 388]}, "from 4 to 388, but should have them from 8 to 392"),
        ({"data_offsets": [12, 396]}, "from 12 to 396, but should have them from 8 to 392"),
        ({"data_offsets": [392, 8]}, "from 392 to 8"),
        ({"data_offsets": [-376, 8]}, r"x\.safetensors is damaged"),
        ({"data_offsets": [8]}, "damaged header"),
        ({"dtype": "F4"}, r"has arrays of unknown dtypes: layer\.w \(F4\)"),
    ],
)
def test_a_header_that_cannot_be_true_is_refused(file, change, said):
    rewritten(file, lambda header: header["layer.w"].update(change))
    with pytest.raises(CheckpointError, match=said):
        open_source(file)


def test_text_beside_the_arrays_may_be_missing_and_must_be_a_dictionary(file):
    rewritten(file, lambda header: header.update(__metadata__=None))
    assert open_source(file).extra == {}
    rewritten(file, lambda header: header.update(__metadata__=["text"]))
    with pytest.raises(DamagedError, match="damaged header"):
        open_source(file)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{", r"index\.json is damaged"),
        ("[]", "does not hold a JSON object"),
        ('{"weight_map": ["layer.w"]}', "has no valid map from arrays to files"),
        ('{"weight_map": {}, "metadata": ["text"]}', "has no valid map from arrays to files"),
        ('{"weight_map": {"layer.w": 3}}', "3 is missing"),
        ('{"weight_map": {"b": "x.safetensors"}}', r"x\.safetensors lacks b, which .*\.json lists there"),
        ('{"weight_map": {"layer.w": "../x.safetensors"}}', r"names \.\./x\.safetensors, a file in another"),
    ],
)
def test_an_index_that_cannot_be_true_is_refused(file, index, said):
    file.with_name("model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=said):
        open_source(file.parent)


def test_a_missing_shard_is_named(tmp_path):
    export_safetensors([np.zeros(8)] * 2, tmp_path, max_shard_bytes=64)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DamagedError, match=r"model-00002-of-00002\.safetensors is missing"):
        open_source(tmp_path)


def test_several_files_are_one_checkpoint_unless_they_share_a_name(file):
    save_file({"y": W}, file.with_name("y.safetensors"))
    assert set(open_source(file.parent).arrays()) == {"layer.w", "step", "y"}
    save_file({"y": W}, file.with_name("z.safetensors"))
    with pytest.raises(CheckpointError, match="has y in several files, and no index"):
        open_source(file.parent)


def test_arrays_that_an_index_does_not_list_are_refused(tmp_path):
    export_safetensors({"a": W, "b": W}, tmp_path, max_shard_bytes=400)
    save_file({"b": W, "left": W}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(
        CheckpointError, match=r"index\.json does not list left of model-00002-of-00002\.safe"
    ):
        open_source(tmp_path)


@pytest.mark.parametrize("gone", ["model.safetensors.index.json", ""])
def test_two_checkpoints_in_a_folder_are_refused(gone, tmp_path):
    export_safetensors({"a": W, "b": W}, tmp_path, max_shard_bytes=400)
    save_file({"a": W + 1, "b": W}, tmp_path / "model.safetensors")
    if gone:
        (tmp_path / gone).unlink()
    with pytest.raises(
        CheckpointError, match=r"has model\.safetensors and model.*\n?.*Move one away, with its files"
    ):
        open_source(tmp_path)


def test_an_array_that_a_header_has_twice_is_damage(file):
    content = file.read_bytes()
    header = content[8 : 8 + struct.unpack("<Q", content[:8])[0]].rstrip()
    twice = header[:-1] + b"," + header[1:]
    file.write_bytes(struct.pack("<Q", len(twice)) + twice + content[8 + len(header) :])
    with pytest.raises(DamagedError, match=r"an object has the key '.*' twice"):
        open_source(file)


def test_no_rows_behind_the_last_one_are_an_empty_array(tmp_path):
    save_file({"w": W}, tmp_path / "x.safetensors")
    assert open_source(tmp_path).arrays()["w"][len(W) :, 1:1].shape == (0, 0)
