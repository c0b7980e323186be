"""Two real processes restore checkpoints of others, each what its own devices need."""

import json
from pathlib import Path

import flax.serialization
import jax
import numpy as np
import pytest
import zarr
from safetensors.numpy import save_file

import meshwright as mw
from checkpoints.formats.readers import redco, t5x, tensorflow
from checkpoints.formats.readers.real import REAL, Expected, wanted_of
from checkpoints.formats.readers.written import put_zarr
from meshwright.launch._internal import launch_local

PROGRAM = Path(__file__).parent / "two.py"
X = np.arange(32, dtype=np.float32).reshape(8, 4)
EMBEDDING = "token_embedder/embedding"
LARGE = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
SLACK = 16384  # what is read beside the data: sizes of files, say
FORMATS = ("safetensors", "npz", "msgpack", "seqax", "orbax", "redco", "t5x", "t5")
MADE = {
    "made/t5x": {"target/x": X},
    "made/t5": {f"target/{EMBEDDING}": X, f"state/param_states/{EMBEDDING}/m": np.zeros(1, np.float32)},
    "made/redco": {"params/x": X},
}


def write_large(directory, mesh):
    """Write a large array in each format, in whole rows or in chunks of them."""
    for name in FORMATS:
        (directory / name).mkdir(parents=True)
    save_file({"x": LARGE}, directory / "safetensors/model.safetensors")
    np.savez(directory / "npz/x.npz", x=LARGE)
    (directory / "msgpack/x.msgpack").write_bytes(flax.serialization.to_bytes({"x": LARGE}))
    group = zarr.open_group(directory / "seqax/0000000001", mode="w", zarr_format=2)
    put_zarr(group, "['x']", LARGE)
    group.attrs["write_completed"] = True
    sharded = jax.device_put(LARGE, jax.NamedSharding(mesh, jax.P(mesh.axis_names)))
    redco.write_tree(directory / "orbax/1", {"x": sharded})
    redco.write(directory / "redco", "last", {"x": sharded}, None, step=1)
    t5x.write(directory / "t5x/checkpoint_1", {"target/x": LARGE}, chunks={"target/x": (128, 1024)})
    tensorflow.write(directory / "t5/model.ckpt-1", {"shared/embedding": LARGE}, checksums=False)


def asked(python, where, wanted):
    """Ask two processes to restore what lies at `where`; return what each of them said of each checkpoint."""
    (where / "large").mkdir(exist_ok=True)
    (where / "asked.json").write_text(json.dumps(wanted))
    assert launch_local([*python, str(PROGRAM), str(where)], 2) == 0
    return [json.loads((where / f"{number}.json").read_text()) for number in (0, 1)]


@pytest.fixture(scope="module")
def said(python, tmp_path_factory):
    """What they said of checkpoints of our making."""
    where = tmp_path_factory.mktemp("two")
    t5x.write(where / "made/t5x/checkpoint_1", {"target/x": X}, chunks={"target/x": (2, 4)})
    tensorflow.write(where / "made/t5/model.ckpt-1", {"shared/embedding": X})
    redco.write(where / "made/redco", "last", {"x": X}, None, step=1)
    write_large(where / "large", mw.make_mesh("data=2,fsdp=2,tensor=2"))
    wanted = {path: {name: Expected.of(x) for name, x in arrays.items()} for path, arrays in MADE.items()}
    return asked(python, where, wanted)


@pytest.fixture(scope="module")
def said_of_real(python, real_checkpoints):
    """What they said of real ones."""
    return asked(python, real_checkpoints, {path: wanted_of(path) for path in REAL})


@pytest.mark.parametrize("path", MADE)
def test_each_of_two_processes_has_its_own_half(path, said):
    assert [each[path] for each in said] == ["as expected"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_each_of_two_processes_reads_half_of_the_bytes(name, said):
    whole = LARGE.nbytes if name == "npz" else 0  # which is compared with its CRC-32, once
    largest = whole + LARGE.nbytes / 2
    assert all(LARGE.nbytes * 0.4 < each[name] <= largest + SLACK for each in said)


@pytest.mark.others
@pytest.mark.parametrize("path", REAL)
def test_a_real_checkpoint_is_restored_by_two_processes(path, said_of_real):
    assert [each[path] for each in said_of_real] == ["as expected"] * 2
