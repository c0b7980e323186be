"""One set of arrays, written by other libraries in each of their formats."""

import tarfile
from pathlib import Path

import flax.serialization
import ml_dtypes
import numcodecs
import numpy as np
import zarr
from safetensors.numpy import save_file

from checkpoints.formats.readers import t5x as writer

ARRAYS = {
    "params/w": np.arange(16 * 24, dtype=np.float32).reshape(16, 24),
    "params/deep": np.arange(3 * 8 * 5, dtype=np.int32).reshape(3, 8, 5),
    "params/b": np.arange(8, dtype=np.float64),
    "step": np.asarray(7, np.int32),
    "nothing": np.zeros((0, 3), np.float32),
}
HALF = {"half": np.arange(64, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(8, 8)}


def safetensors(directory):
    arrays = {name.replace("/", "."): array for name, array in (ARRAYS | HALF).items()}
    save_file(arrays, directory / "model.safetensors")
    return directory


def npz(directory):
    np.savez(directory / "arrays.npz", **ARRAYS, columns=np.asfortranarray(ARRAYS["params/w"]))
    return directory / "arrays.npz"


def npz_compressed(directory):
    np.savez_compressed(directory / "arrays.npz", **ARRAYS, big_endian=np.arange(9, dtype=">i2"))
    return directory / "arrays.npz"


def flax_msgpack(directory):
    """Write the largest arrays in chunks of 1000 bytes, as others would be of 2^30."""
    nested = {"params": {"w": ARRAYS["params/w"], "deep": ARRAYS["params/deep"], "b": ARRAYS["params/b"]}}
    largest, flax.serialization.MAX_CHUNK_SIZE = flax.serialization.MAX_CHUNK_SIZE, 1000
    content = flax.serialization.to_bytes(nested | {"step": np.int32(7), "nothing": ARRAYS["nothing"]} | HALF)
    flax.serialization.MAX_CHUNK_SIZE = largest
    (directory / "checkpoint_7").write_bytes(content)
    return directory


def t5x(directory):
    """Write a step of arrays in chunks, compressed by gzip, and a tree with the rest."""
    chunks = {"params/w": (5, 24), "params/deep": (3, 3, 2)}
    in_tree = ("step", "nothing", "params/b")
    writer.write(directory / "checkpoint_7", ARRAYS | HALF, in_tree=in_tree, chunks=chunks)
    return directory


def seqax(directory, arrays=ARRAYS):
    """Write as seqax does, the keys of dictionaries spelt as JAX's `keystr` spells them."""
    step = directory / "0000000007"
    group = zarr.open_group(step, mode="w", zarr_format=2)
    for name, array in arrays.items():
        stored = "".join(f"[{key!r}]" for key in name.split("/"))
        put_zarr(group, stored, array)
    group.attrs["write_completed"] = True
    return directory


def put_zarr(group, name, array):
    blosc = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=1, blocksize=0)
    chunks = tuple(max(1, size // 2) for size in array.shape)
    made = group.create_array(
        name,
        shape=array.shape,
        chunks=chunks,
        dtype=array.dtype,
        compressors=blosc if array.ndim else None,
        fill_value=None,
        config={"write_empty_chunks": True},
    )
    made[...] = array


def orbax(directory):
    """Take what `orbax_golden.py` wrote; it has other arrays, `ORBAX`."""
    with tarfile.open(Path(__file__).with_name("orbax_golden.tar.gz")) as archive:
        archive.extractall(directory, filter="data")
    return directory


ORBAX = {
    "params/w": ARRAYS["params/w"],
    "params/layers/0": HALF["half"],
    "params/layers/1": np.zeros(6, np.int32),
    "step": np.asarray(7, np.int32),
    "epoch": np.asarray(3),
    "a.b": np.arange(3.0),
}
