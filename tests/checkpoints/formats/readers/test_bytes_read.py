"""How much is read of what is asked for."""

import itertools
from functools import partial
from pathlib import Path

import flax.serialization
import jax
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file

from checkpoints.formats.readers import redco
from checkpoints.formats.readers import t5x as writer
from checkpoints.formats.readers import tensorflow as bundle
from checkpoints.formats.readers.real import REAL, opened, restored, wanted_of
from checkpoints.formats.readers.written import put_zarr
from meshwright.checkpoints._arrays._source import cast
from meshwright.checkpoints._formats._open import open_source

LARGE = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
ROW = LARGE[0].nbytes
SLACK = 4096  # what is read beside the data: sizes of files, say


def safetensors(directory):
    save_file({"x": LARGE, "y": LARGE}, directory / "model.safetensors")


def npz(directory):
    np.savez(directory / "x.npz", x=LARGE, y=LARGE)


def npz_compressed(directory):
    np.savez_compressed(directory / "x.npz", x=LARGE)


def npz_of_columns(directory):
    np.savez(directory / "x.npz", x=np.asfortranarray(LARGE), y=LARGE)


def npz_big_endian(directory):
    np.savez(directory / "x.npz", x=LARGE.astype(">f4"), y=LARGE)


def flax_msgpack(directory):
    (directory / "x.msgpack").write_bytes(flax.serialization.to_bytes({"x": LARGE, "y": LARGE}))


def flax_msgpack_in_chunks(directory):
    largest, flax.serialization.MAX_CHUNK_SIZE = flax.serialization.MAX_CHUNK_SIZE, 5 * ROW
    flax_msgpack(directory)
    flax.serialization.MAX_CHUNK_SIZE = largest


def seqax(directory):
    group = zarr.open_group(directory / "0000000001", mode="w", zarr_format=2)
    put_zarr(group, "['x']", LARGE)
    group.attrs["write_completed"] = True


def t5x(directory):
    arrays = {"target/x": LARGE, "target/y": LARGE}
    writer.write(directory / "checkpoint_1", arrays, chunks={"target/x": (512, 512)})


def tensorflow(directory):
    bundle.write(directory / "model.ckpt-1", {"shared/embedding": LARGE[:64]}, checksums=False)


@pytest.mark.parametrize("write", [safetensors, npz, flax_msgpack, seqax, t5x, tensorflow])
def test_to_open_a_checkpoint_reads_next_to_none_of_it(write, tmp_path, bytes_read):
    write(tmp_path)
    open_source(tmp_path)
    assert bytes_read(lambda: open_source(tmp_path)) < 40_000


def checked(x):
    """Have the array compared with its checksum, for which all of it is read."""
    x.read((slice(1),) * x.ndim)
    return x


@pytest.mark.parametrize("write", [npz, npz_compressed, npz_big_endian])
def test_of_npz_an_array_is_read_once_to_be_compared_with_its_checksum(write, tmp_path, bytes_read):
    write(tmp_path)
    x, half = open_source(tmp_path).arrays()["x"], (slice(512), slice(None))
    assert LARGE.nbytes * 0.9 < bytes_read(lambda: x.read(half)) <= LARGE.nbytes + SLACK
    assert bytes_read(lambda: x.read(half)) <= LARGE.nbytes / 2 + SLACK


@pytest.mark.parametrize("write", [safetensors, npz, flax_msgpack])
def test_of_rows_their_bytes_are_read(write, tmp_path, bytes_read):
    write(tmp_path)
    x = checked(open_source(tmp_path).arrays()["x"])
    assert bytes_read(lambda: x.read((slice(100, 110), slice(None)))) <= 10 * ROW + SLACK


COLUMNS = [(slice(8), slice(start, start + 256)) for start in range(0, 1024, 256)]
ROWS_TURNED = [index[::-1] for index in COLUMNS]


@pytest.mark.parametrize(
    "write", [safetensors, npz, npz_big_endian, npz_compressed, flax_msgpack, flax_msgpack_in_chunks]
)
def test_columns_that_several_devices_want_are_read_once(write, tmp_path, bytes_read):
    write(tmp_path)
    x = checked(open_source(tmp_path).arrays()["x"])
    read = []
    assert bytes_read(lambda: read.extend(x.read_parts(COLUMNS))) <= 8 * ROW + SLACK
    assert np.array_equal(np.concatenate(read, axis=1), LARGE[:8])


@pytest.mark.parametrize(
    ("make", "made"),
    [
        (lambda x: x.astype("bfloat16"), LARGE.astype("bfloat16")),
        (lambda x: x.view("int32"), LARGE.view("int32")),
        (lambda x: x.transpose().astype("float64").transpose(), LARGE.astype("float64")),
    ],
    ids=["cast", "view", "transpose"],
)
def test_columns_of_what_is_made_of_an_array_are_read_once(make, made, tmp_path, bytes_read):
    safetensors(tmp_path)
    x = make(open_source(tmp_path).arrays()["x"])
    read = []
    assert bytes_read(lambda: read.extend(x.read_parts(COLUMNS))) <= 8 * ROW + SLACK
    assert np.array_equal(np.concatenate(read, axis=1), made[:8])


def test_rows_of_an_array_in_order_of_its_columns_are_read_once(tmp_path, bytes_read):
    npz_of_columns(tmp_path)
    x = checked(open_source(tmp_path).arrays()["x"])
    read = []
    assert bytes_read(lambda: read.extend(x.read_parts(ROWS_TURNED))) <= 8 * ROW + SLACK
    assert np.array_equal(np.concatenate(read), LARGE[:, :8])


def test_of_a_part_of_rows_that_lie_far_apart_their_bytes_are_read(tmp_path, bytes_read):
    save_file({"x": LARGE.reshape(16, -1)}, tmp_path / "model.safetensors")
    x = open_source(tmp_path).arrays()["x"]
    assert bytes_read(lambda: x.read((slice(None), slice(7, 9)))) <= 16 * 2 * 4 + SLACK


def test_of_chunks_those_are_read_that_have_some_of_it(tmp_path, bytes_read):
    seqax(tmp_path)
    chunk = (tmp_path / "0000000001" / "['x']" / "0.1").stat().st_size
    x = open_source(tmp_path).arrays()["x"]
    within_one = (slice(0, 512), slice(600, 700))
    assert chunk <= bytes_read(lambda: x.read(within_one)) <= chunk + SLACK


def test_of_files_in_chunks_those_are_read_that_devices_need_and_once(tmp_path, bytes_read, mesh):
    t5x(tmp_path)
    x = open_source(tmp_path).arrays()["target/x"]
    left = sum((tmp_path / f"checkpoint_1/target.x/{row}.0").stat().st_size for row in (0, 1))
    eighths = [(slice(at, at + 128), slice(0, 512)) for at in range(0, 1024, 128)]
    assert left <= bytes_read(lambda: x.read_parts(eighths)) <= left + SLACK


def test_of_variables_of_tensorflow_their_rows_are_read(tmp_path, bytes_read):
    tensorflow(tmp_path)
    x = open_source(tmp_path).arrays()["target/token_embedder/embedding"]
    assert bytes_read(lambda: x.read((slice(3, 5), slice(None)))) <= 2 * ROW + SLACK


def test_of_a_database_of_redco_the_chunks_are_read_that_have_some_of_it(tmp_path, bytes_read, mesh):
    sharded = jax.device_put(LARGE, jax.NamedSharding(mesh, jax.P(mesh.axis_names)))
    redco.write(tmp_path, "last", {"x": sharded}, None, step=1)
    x = open_source(tmp_path).arrays()["params/x"]
    eighth = LARGE.nbytes // 8  # a chunk, which zstd makes a little smaller
    assert eighth // 2 < bytes_read(lambda: x.read((slice(128), slice(None)))) <= eighth + SLACK


def test_over_eight_devices_each_chunk_is_read_once_also_where_it_is_cast(tmp_path, bytes_read, mesh):
    t5x(tmp_path)
    source = cast(open_source(tmp_path), [(".*", "bfloat16")])
    stored = sum(file.stat().st_size for file in tmp_path.glob("checkpoint_1/target.*/[0-9]*"))
    assert stored <= bytes_read(lambda: restored(source, mesh)) <= stored + SLACK


def first_eighth(shape):
    """Return an eighth of an array, along the first dimension that has eighths; None where none has."""
    dim = next((dim for dim, size in enumerate(shape) if size and size % 8 == 0), None)
    if dim is None:
        return None
    return tuple(slice(size // 8 if at == dim else size) for at, size in enumerate(shape))


def needed(place, name, array, part):
    """Return the bytes of the chunks that have some of a part; where there are none, of its rows."""
    directory = next(filter(Path.is_dir, (place / name, place / name.replace("/", "."))), None)
    if directory is None:
        return array.nbytes // array.shape[0] * part[0].stop
    touched = (range(-(-each.stop // size)) for each, size in zip(part, array.stored_chunks, strict=True))
    return sum(
        (directory / ".".join(map(str, chunk))).stat().st_size for chunk in itertools.product(*touched)
    )


@pytest.mark.others
@pytest.mark.parametrize("path", REAL)
def test_of_an_eighth_of_each_real_array_only_its_chunks_are_read(path, real_checkpoints, bytes_read):
    source = opened(real_checkpoints / path, wanted_of(path))
    parts = {name: first_eighth(array.shape) for name, array in source.arrays().items()}
    for name, part in parts.items():
        if part is not None:
            array = source.arrays()[name]
            assert bytes_read(partial(array.read, part)) <= needed(source.path, name, array, part), name
