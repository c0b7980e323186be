import io
import math
import zipfile

import ml_dtypes
import numpy as np
import pytest

from checkpoints.formats.readers import written
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._formats.readers._file import File
from meshwright.errors import CheckpointError, DamagedError
from soak import rng


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


def test_damage_in_a_compressed_header_is_noticed(tmp_path):
    content = bytearray(zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE)}, zipfile.ZIP_DEFLATED).read_bytes())
    content[content.index(b"x.npy") + len(b"x.npy")] ^= 7  # the first byte of what is compressed
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.npz is damaged"):
        open_source(tmp_path)


def test_python_objects_are_refused_and_not_unpickled(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    with pytest.raises(CheckpointError, match=r"x\.npy holds Python objects, which is not supported"):
        open_source(tmp_path)


def npy(array, version=None):
    content = io.BytesIO()
    np.lib.format.write_array(content, array, version=version)
    return content.getvalue()


def zipped(file, members, method=zipfile.ZIP_STORED, *, is_large=False):
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            with archive.open(name, "w", force_zip64=is_large) as member:
                member.write(content)
    return file


CUBE = np.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_version_and_compression_is_read_with_long_numbers_too(method, version, tmp_path):
    file = zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE, version)}, method, is_large=True)
    assert np.array_equal(open_source(file).arrays()["x"], CUBE)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", ">i2", "c16", "?"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (3, 0)])
def test_every_order_and_shape_is_read(shape, dtype, order, tmp_path):
    array = np.array(CUBE.ravel()[: math.prod(shape)].reshape(shape), dtype, order=order)
    np.savez(tmp_path / "x.npz", x=array)
    read = np.asarray(open_source(tmp_path).arrays()["x"])
    assert (read.dtype, read.shape) == (array.dtype.newbyteorder("="), shape)
    assert np.array_equal(read, array)


def test_what_would_be_passed_over_is_refused(tmp_path):
    file = zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE), "sub/": b"", "sub/y.npy": npy(CUBE)})
    assert list(open_source(file).arrays()) == ["x", "sub/y"]
    zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE), "x": b"text"})
    with pytest.raises(CheckpointError, match=r"x\.npz has x, which are no arrays"):
        open_source(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", npy(CUBE))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("x.npy", npy(CUBE + 1))
    with pytest.raises(CheckpointError, match=r"x\.npz has x\.npy, each several times"):
        open_source(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (npy(CUBE)[:-8], r"x\.npy has 184 bytes, but float64\[2, 3, 4\] needs 192"),
        (npy(CUBE) + bytes(8), r"x\.npy has 200 bytes, but"),
        (npy(CUBE).replace(b"3, 4)", b"3,-4)"), r"float64\[2, 3, -4\]"),
        (npy(CUBE).replace(b"2, 3, 4)", b"2,-3,-4)"), r"float64\[2, -3, -4\]"),
        (npy(CUBE)[:20], "reading array header"),
        (b"", "reading magic string"),
        (b"XX" + npy(CUBE)[2:], "the magic string is not correct"),
        (b"\x93NUMPY\x09\x00" + npy(CUBE)[8:], r"x\.npy has format version \(9, 0\)"),
        (npy(CUBE).replace(b"{'descr'", b"{'other'"), "correct keys"),
        (npy(CUBE).replace(b"{'descr'", b"__import"), ""),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_cannot_be_an_array_is_refused(content, said, method, tmp_path):
    file = zipped(tmp_path / "x.npz", {"x.npy": content, "y.npy": npy(CUBE)}, method)
    with pytest.raises(DamagedError, match=rf"x\.npz is damaged: .*{said}"):
        open_source(file)


@pytest.mark.parametrize(("byte", "value"), [(6, 1), (8, zipfile.ZIP_LZMA)])
def test_what_is_encrypted_or_compressed_otherwise_is_refused(byte, value, tmp_path):
    content = bytearray(zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE)}).read_bytes())
    for header in (0, content.find(b"PK\x01\x02") + 2):  # the member's own, and that in the directory
        content[header + byte] = value
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"x\.npy is encrypted, or compressed"):
        open_source(tmp_path)


def test_a_version_of_zip_that_is_not_known_is_refused(tmp_path):
    content = bytearray(zipped(tmp_path / "x.npz", {"x.npy": npy(CUBE)}).read_bytes())
    content[content.find(b"PK\x01\x02") + 6] = 228
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DamagedError, match=r"x\.npz is damaged: zip file version 22\.8"):
        open_source(tmp_path)


def test_bytes_before_the_file_are_damage(tmp_path):
    (tmp_path / "x").write_bytes(bytes(9))
    with pytest.raises(DamagedError, match="data should begin 4 bytes before its start"):
        File(tmp_path / "x")[-4:2]


def test_types_that_numpy_does_not_write_are_not_guessed(tmp_path):
    half = np.ones(3, ml_dtypes.bfloat16)
    np.savez(tmp_path / "x.npz", **{"x": half, "y::bf16": half.view(np.uint16)})
    arrays = open_source(tmp_path).arrays()
    assert arrays["x"].dtype == np.dtype("V2")
    assert arrays["y::bf16"].dtype == np.uint16
    with pytest.raises(CheckpointError, match="x: dtype void16 in the checkpoint, bfloat16 in the target"):
        restore(open_source(tmp_path), {"x": half}, ignore="y.*")


def test_other_zip_files_are_no_checkpoints(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04" + bytes(22) + b"\x08\0\0\0data.pkl")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        open_source(tmp_path / "x.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [np.s_[:, :], np.s_[:1, :], np.s_[5:6, 2:4]], ids=str)
def test_no_flipped_bit_goes_unnoticed_whatever_part_is_read(tmp_path, save, part):
    values = np.random.default_rng(0).standard_normal((8, 300))
    save(tmp_path / "x.npz", x=values, y=values)
    whole, chance = (tmp_path / "x.npz").read_bytes(), rng("npz")
    assert np.array_equal(open_source(tmp_path).read("x", part), values[part])
    for _ in range(20):
        content, at = bytearray(whole), chance.randrange(len(whole) // 2)
        content[at] ^= 1 << chance.randrange(8)
        (tmp_path / "x.npz").write_bytes(content)
        try:
            read = open_source(tmp_path).read("x", part)
        except CheckpointError:
            continue
        assert np.array_equal(read, values[part])  # a bit of what ZIP says twice, or of the time


def test_a_header_that_is_nested_too_deeply_is_damage(tmp_path):
    header = ("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "-" * 9000 + "1,)}").encode()
    content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    zipped(tmp_path / "x.npz", {"x.npy": content})
    with pytest.raises(DamagedError, match=r"x\.npz is damaged"):
        open_source(tmp_path)
