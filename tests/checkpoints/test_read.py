import json
import zlib

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, DamagedError

DATA_FILE = "data-00000-of-00001.zarr.zip"


def chunks_of(checkpoint, name):
    """Return file, offset, size and CRC-32 of the chunks of one array."""
    return json.loads((checkpoint / "manifest.json").read_text())["arrays"][name]["chunks"]


def flip_a_bit(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def test_a_flipped_bit_is_an_error_that_names_file_array_and_offset(state, save):
    checkpoint = save(state)
    _, offset, size, _ = chunks_of(checkpoint, "params/w")[3]
    flip_a_bit(checkpoint / DATA_FILE, offset + size - 1)
    with pytest.raises(
        CheckpointError, match=rf"params/w from .*{DATA_FILE}, {size} bytes at offset {offset}: the CRC-32"
    ):
        restore(open_source(checkpoint), state)


def test_every_bit_of_an_array_is_checked(save):
    checkpoint = save({"x": np.arange(40, dtype=np.uint8)})
    [[_, offset, size, _]] = chunks_of(checkpoint, "x")
    for position in range(offset, offset + size):
        flip_a_bit(checkpoint / DATA_FILE, position)
        with pytest.raises(CheckpointError, match="CRC-32"):
            open_source(checkpoint).read("x", (slice(None),))
        flip_a_bit(checkpoint / DATA_FILE, position)
    assert open_source(checkpoint).read("x", (slice(None),)).tolist() == list(range(40))


def test_parts_that_begin_in_the_middle_are_those_of_the_whole(save):
    w = np.arange(64).reshape(16, 4)
    parts = [(slice(first, first + 2), slice(0, 4)) for first in (6, 8, 10)]
    arrays = open_source(save({"w": w})).read_parts("w", parts)
    assert [x.tolist() for x in arrays] == [w[part].tolist() for part in parts]


def test_only_the_chunks_that_are_asked_for_are_read(mesh, save):
    size = 1 << 18  # 1 MiB of float32: smaller neighbours would be one chunk
    checkpoint = save(
        {"x": jax.device_put(np.arange(2.0 * size, dtype=np.float32), NamedSharding(mesh, P("fsdp")))}
    )
    flip_a_bit(checkpoint / DATA_FILE, chunks_of(checkpoint, "x")[1][1])
    assert open_source(checkpoint).read("x", (slice(0, size),))[-1] == size - 1
    with pytest.raises(CheckpointError):
        open_source(checkpoint).read("x", (slice(size - 1, size + 1),))


def test_a_truncated_file_is_named(state, save):
    checkpoint = save(state)
    size = (checkpoint / DATA_FILE).stat().st_size
    with (checkpoint / DATA_FILE).open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(CheckpointError, match=rf"{DATA_FILE}.*has {size - 1} bytes instead of {size}"):
        restore(open_source(checkpoint), state)


def test_a_missing_file_is_named(state, save):
    checkpoint = save(state)
    (checkpoint / DATA_FILE).unlink()
    with pytest.raises(CheckpointError, match=rf"{DATA_FILE}.* the file is missing"):
        restore(open_source(checkpoint), state)


@pytest.mark.parametrize("word", [b'"step": 800', b'"scores"', b'"shape": [5]', b"crc32"])
def test_a_damaged_manifest_is_not_believed(save, word):
    checkpoint = save({"x": np.zeros(5)}, extra={"scores": {}})
    manifest = checkpoint / "manifest.json"
    flip_a_bit(manifest, manifest.read_bytes().index(word) + len(word) - 2)
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        open_source(checkpoint)


def test_a_newer_format_says_what_to_install(save):
    manifest = save({"x": np.zeros(5)}) / "manifest.json"
    head = manifest.read_bytes().replace(b'"version": 1', b'"version": 2').rpartition(b'"crc32"')[0]
    manifest.write_bytes(head + f'"crc32": {zlib.crc32(head)}}}\n'.encode())
    with pytest.raises(
        CheckpointError, match=r"format version 2, but this Meshwright reads versions up to 1.*written by"
    ):
        open_source(manifest.parent)


def test_another_programs_manifest_is_not_taken_for_ours(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(CheckpointError, match="not the manifest of a Meshwright checkpoint"):
        open_source(tmp_path)


def test_a_directory_of_checkpoints_opens_as_its_newest(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(9, {"x": 9})
        checkpoints.save(10, {"x": 10})
    assert open_source(tmp_path).read("x", ()) == 10
    assert open_source(tmp_path / "step_00000009").read("x", ()) == 9


def test_a_damaged_newest_is_an_error_that_tells_which_other_there_is(tmp_path):
    with Checkpoints(tmp_path, keep=last(3)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": step})
    (tmp_path / "step_00000002" / DATA_FILE).unlink()
    flip_a_bit(tmp_path / "step_00000003" / "manifest.json", 30)
    with pytest.raises(DamagedError) as error:
        open_source(tmp_path)
    assert f"{tmp_path}/step_00000003/manifest.json is damaged" in str(error.value)
    assert f"looks complete is step_00000001: open_source('{tmp_path}/step_00000001')" in str(error.value)
    (tmp_path / "step_00000001" / DATA_FILE).unlink()
    with pytest.raises(DamagedError, match="No other checkpoint in its directory is complete"):
        open_source(tmp_path)


def test_what_is_no_checkpoint_is_told_apart(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / DATA_FILE).touch()
    (tmp_path / "killed" / "step_00000001.tmp-0123abcd").mkdir(parents=True)
    (tmp_path / "spoilt" / "step_00000001.damaged-0123abcd").mkdir(parents=True)
    for name, said in {
        "nothing": "does not exist",
        "file": r"is not a checkpoint.\n  Known formats: Meshwright, .*safetensors",
        "other": r"is not a checkpoint.*It holds notes\.txt",
        "half": r"has data files but no manifest\.json.*or its run was killed",
        "spoilt": r"only step_00000001\.damaged-0123abcd, which was found damaged and set aside",
        "killed": r"only the unfinished step_00000001\.tmp-0123abcd.*or its run was killed",
    }.items():
        with pytest.raises(CheckpointError, match=said):
            open_source(tmp_path / name)


def test_reading_writes_nothing(tmp_path):
    assert Checkpoints(tmp_path / "not_there").latest() is None
    with pytest.raises(CheckpointError):
        open_source(tmp_path)
    assert list(tmp_path.iterdir()) == []
