"""Arrays of zarr 2 as TensorStore may write them, and spoilt, in a checkpoint of T5X."""

import itertools
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Barrier

import ml_dtypes
import numpy as np
import pytest
import tensorstore
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.formats.readers import t5x
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, DamagedError

WHOLE = np.arange(12 * 8, dtype=np.float32).reshape(12, 8)
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes an array with this in its `.zarray`, and returns where."""

    def write(array=WHOLE, name="target/w", **metadata):
        directory = tmp_path / "checkpoint_5"
        if not directory.exists():
            chunk = tuple(max(1, size) for size in array.shape)
            chunks = dict.fromkeys(("target/w", "target/other"), chunk)
            t5x.write(directory, dict.fromkeys(chunks, array), chunks=chunks, spec=spec_with(metadata))
        folder = directory / name.replace("/", ".")
        spec = t5x.spec_of(f"{folder}/", array, array.shape, None)
        spec["metadata"] |= metadata
        tensorstore.open(spec, create=True, delete_existing=True).result().write(array).result()
        return folder

    return write


@pytest.mark.parametrize("name", [".zarray", "0.0"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_file_that_is_a_pipe_a_device_or_a_folder_is_an_error(written, name, make):
    path = written() / name
    path.unlink()
    make(path)
    with pytest.raises(OSError, match=rf"is not an ordinary file: .*{name}"):
        np.asarray(open_source(path.parents[1]).arrays()["target/w"])


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}, BLOSC])
def test_a_chunk_that_claims_more_than_there_can_be_is_damage(written, compressor):
    path = written(compressor=compressor) / ".zarray"
    claims = {"chunks": [1 << 40, 8]}
    path.write_text(json.dumps(json.loads(path.read_text()) | claims))
    with pytest.raises(DamagedError, match=r"not possible|instead of"):
        np.asarray(open_source(path.parents[1]).arrays()["target/w"])


def spec_with(metadata):
    """Return what makes specs for the tree that say the dtype as `.zarray` does, with its order of bytes."""

    def spec(*args):
        made = t5x.spec_of(*args)
        if made["kvstore"]["path"] == "target.w/":
            made["metadata"] |= {key: said for key, said in metadata.items() if key == "dtype"}
        return made

    return spec


def opened(folder):
    return open_source(folder.parent).arrays()["target/w"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"chunks": [5, 3]},
        {"chunks": [5, 3], "dimension_separator": "/"},
        {"chunks": [5, 3], "order": "F"},
        {"chunks": [5, 3], "order": "F", "compressor": {"id": "gzip", "level": 1}},
        {"chunks": [40, 1], "compressor": BLOSC},
        {"chunks": [5, 3], "dtype": "<f4", "fill_value": 7.0, "compressor": {"id": "zstd", "level": 3}},
        {"dtype": ">f4"},
    ],
)
def test_every_layout_of_chunks_is_read(metadata, written):
    array = opened(written(**metadata))
    assert (np.asarray(array) == WHOLE).all()
    assert (array.read((slice(4, 11), slice(2, 7))) == WHOLE[4:11, 2:7]).all()


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "complex64", "float16", "bfloat16", "float8_e4m3fn", "int4"]
)
def test_every_dtype_is_read(dtype, written):
    whole = (WHOLE % 7).astype(getattr(ml_dtypes, dtype, dtype))
    found = np.asarray(opened(written(whole, chunks=[5, 3])))
    assert (found.dtype, found.tobytes()) == (whole.dtype, whole.tobytes())


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (2, 1, 3)])
def test_every_shape_is_read(shape, written):
    whole = np.ones(shape, np.float32)
    found = np.asarray(opened(written(whole, chunks=[max(1, size) for size in shape])))
    assert (found.shape, found.tobytes()) == (shape, whole.tobytes())


def test_a_chunk_is_wanted_even_where_metadata_says_what_to_fill_in(written):
    folder = written(chunks=[5, 3], dtype="<f4", fill_value=0.0)
    (folder / "1.1").unlink()
    with pytest.raises(DamagedError, match=r"target/w: the chunk .*target\.w/1\.1 is missing"):
        np.asarray(opened(folder))


def test_several_chunks_are_read_at_a_time(written, monkeypatch):
    array = opened(written(chunks=[6, 8]))
    both, read_bytes = Barrier(2, timeout=60), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: both.wait() < 2 and read_bytes(path))
    assert (np.asarray(array) == WHOLE).all()


@pytest.mark.parametrize("content", ["", "[1, 2]", "{", "{}", "null"])
def test_metadata_that_is_none_is_refused_with_its_name(content, written):
    folder = written()
    (folder / ".zarray").write_text(content)
    with pytest.raises(
        DamagedError, match=r"target/w: \S*target\.w/\.zarray is not metadata of a zarr array"
    ):
        opened(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": None},
        {"shape": [-12, 8]},
        {"chunks": [12]},
        {"chunks": [0, 8]},
        {"dtype": None},
        {"dtype": "<U4"},
        {"dtype": [["a", "<f4"]]},
        {"dtype": "float33"},
        {"dtype": "<f4,(1"},
        {"order": "A"},
        {"dimension_separator": "-"},
        {"zarr_format": 3},
        {"compressor": {"level": 1}},
        {"compressor": "gzip"},
    ],
)
def test_metadata_that_makes_no_sense_is_refused_with_its_name(change, written):
    folder = written()
    metadata = json.loads((folder / ".zarray").read_text())
    (folder / ".zarray").write_text(json.dumps(metadata | change))
    with pytest.raises(
        DamagedError, match=r"target/w: \S*target\.w/\.zarray is not metadata of a zarr array"
    ):
        opened(folder)


@pytest.mark.parametrize(
    "change", [{"filters": [{"id": "delta"}]}, {"compressor": {"id": "lzma"}}, {"storage_transformers": [1]}]
)
def test_what_is_not_read_is_refused_before_anything_is_read_and_all_is_listed(change, written):
    for name in ("target/w", "target/other"):
        folder = written(name=name)
        metadata = json.loads((folder / ".zarray").read_text())
        (folder / ".zarray").write_text(json.dumps(metadata | change))
    with pytest.raises(
        CheckpointError, match=r"(?s)target/other: its (chunks|metadata) .*target/w: its (chunks|metadata)"
    ) as raised:
        opened(folder)
    assert not isinstance(raised.value, DamagedError)


@pytest.mark.slow
@given(st.data())
def test_what_devices_want_is_read_together_whatever_the_chunks(data):
    chunks = data.draw(st.tuples(st.integers(1, 13), st.integers(1, 9)))
    cuts = [data.draw(st.lists(st.integers(0, size), min_size=2, max_size=4)) for size in WHOLE.shape]
    slices = [list(itertools.starmap(slice, itertools.pairwise(sorted(each)))) for each in cuts]
    parts = list(itertools.product(*slices))
    with TemporaryDirectory() as place:
        directory = t5x.write(Path(place) / "checkpoint_5", {"target/w": WHOLE}, chunks={"target/w": chunks})
        found = opened(directory / "target.w").read_parts(parts)
    assert all((part == WHOLE[index]).all() for part, index in zip(found, parts, strict=True))
