"""How much is read of what is asked for."""

import flax.serialization
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file

from checkpoint.readers import t5x as writer
from checkpoint.readers import tensorflow as bundle
from checkpoint.readers.written import put_zarr
from meshwright.checkpoint import open_source

LARGE = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
ROW = LARGE[0].nbytes
SLACK = 4096  # what is read beside the data: sizes of files, say


def safetensors(directory):
    save_file({"x": LARGE, "y": LARGE}, directory / "model.safetensors")


def npz(directory):
    np.savez(directory / "x.npz", x=LARGE, y=LARGE)


def flax_msgpack(directory):
    (directory / "x.msgpack").write_bytes(flax.serialization.to_bytes({"x": LARGE, "y": LARGE}))


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


@pytest.mark.parametrize("write", [safetensors, npz, flax_msgpack])
def test_of_rows_their_bytes_are_read(write, tmp_path, bytes_read):
    write(tmp_path)
    x = open_source(tmp_path).arrays()["x"]
    assert bytes_read(lambda: x.read((slice(100, 110), slice(None)))) <= 10 * ROW + SLACK


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
