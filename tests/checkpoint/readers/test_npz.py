import ml_dtypes
import numpy as np
import pytest

from checkpoint.readers import written
from meshwright.checkpoint import open_source, restore
from meshwright.errors import CheckpointError, DamagedError


@pytest.mark.parametrize("write", [written.npz, written.npz_compressed])
def test_a_file_that_was_cut_off_is_refused(write, tmp_path):
    file = write(tmp_path)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DamagedError, match=r"arrays\.npz is damaged: File is not a zip file"):
        open_source(file)


def test_a_flipped_bit_in_a_compressed_array_is_noticed(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal(1000))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[4000] ^= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.npz is damaged: x\.npy"):
        np.asarray(open_source(tmp_path).arrays()["x"])


def test_python_objects_are_refused_and_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    with pytest.raises(CheckpointError, match=r"x\.npy holds Python objects, which are not read"):
        open_source(tmp_path)


def test_types_that_numpy_does_not_write_are_not_guessed(tmp_path):
    half = np.ones(3, ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", **{"x": half, "y::bf16": half.view(np.uint16)})
    arrays = open_source(tmp_path).arrays()
    assert arrays["x"].dtype == np.dtype("V2")
    assert arrays["y::bf16"].dtype == np.uint16
    with pytest.raises(CheckpointError, match="x: dtype void16 in the checkpoint, bfloat16 wanted"):
        restore(open_source(tmp_path), {"x": half}, ignore="y.*")


def test_other_zip_files_are_no_checkpoints(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04" + bytes(22) + b"\x08\0\0\0data.pkl")
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        open_source(tmp_path / "x.npz")
