"""Manifests that somebody wrote by hand, with a right checksum: nothing of them is believed unseen."""

import json
import zlib

import numpy as np
import pytest

from meshwright.checkpoints._formats._inspect import contents, verify
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, DamagedError


def seal(fields):
    body = (
        b"{\n"
        + b",\n".join(json.dumps({key: value})[1:-1].encode() for key, value in fields.items())
        + b",\n"
    )
    return body + f'"crc32": {zlib.crc32(body)}}}\n'.encode()


def craft(checkpoint, change):
    """Change what the manifest says, and seal it again."""
    manifest = checkpoint / "manifest.json"
    fields = json.loads(manifest.read_bytes())
    del fields["crc32"]
    change(fields)
    manifest.write_bytes(seal(fields))


def of_array(**claims):
    return lambda fields: fields["arrays"]["params/w"].update(claims)


def of_chunk(place, value):
    def change(fields):
        fields["arrays"]["params/w"]["chunks"][0][place] = value

    return change


def of_file(**claims):
    return lambda fields: fields["files"][0].update(claims)


def top(**claims):
    return lambda fields: fields.update(claims)


def without(name):
    return lambda fields: fields.pop(name)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


CRAFTED = {
    "no step": without("step"),
    "no version": without("version"),
    "no files": without("files"),
    "no arrays": without("arrays"),
    "no writer": without("writer"),
    "step of text": top(step="800"),
    "version of text": top(version="1"),
    "extra of a number": top(extra=7),
    "deep extra": top(extra={"a": nested(500)}),
    "keys of no array": top(prng_keys={"other": "threefry2x32"}),
    "half of a pair in a name": lambda fields: fields["arrays"].update({"\ud800": {}}),
    "negative chunks": of_array(chunk_shape=[-1, -1]),
    "zero chunks": of_array(chunk_shape=[0, 6]),
    "chunks that do not divide": of_array(chunk_shape=[3, 6]),
    "chunks of another rank": of_array(chunk_shape=[4]),
    "no chunks": of_array(chunks=None),
    "chunks of numbers": of_array(chunks=[1, 2]),
    "more elements than memory has": of_array(shape=[2**40, 2**10]),
    "more of nothing than memory has": of_array(shape=[0, 2**62], chunk_shape=[1, 1], chunks=[]),
    "100 dimensions": of_array(shape=[1] * 98 + [4, 6], chunk_shape=[1] * 98 + [4, 6]),
    "objects": of_array(dtype="object"),
    "a dtype that is no text": of_array(dtype=5),
    "another file": of_chunk(0, 9),
    "a file before the first": of_chunk(0, -1),
    "an offset before the file": of_chunk(1, -64),
    "an offset behind it": of_chunk(1, 2**63),
    "another size": of_chunk(2, 0),
    "a negative size": of_chunk(2, -1),
    "a checksum of more bits": of_chunk(3, 2**32),
    "a number that is none": of_chunk(1, True),
    "a file elsewhere": of_file(name="/etc/passwd"),
    "a file above": of_file(name=".."),
    "a file far above": of_file(name="../../x"),
    "a file of nothing": of_file(name=""),
    "a file without end": of_file(name="/dev/zero"),
    "a file of no size": of_file(bytes=None),
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_a_manifest_that_cannot_be_is_damage_in_every_way_to_it(save, change):
    checkpoint = save({"params": {"w": np.arange(24, dtype=np.float32).reshape(4, 6)}})
    craft(checkpoint, change)
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged: ") as raised:
        open_source(checkpoint)
    assert len(str(raised.value)) < 1000
    assert verify(checkpoint).damage
    assert contents(checkpoint.parent).checkpoints[0].nbytes is None


def test_a_manifest_that_is_nested_without_end_is_damage(save):
    checkpoint = save({"x": np.zeros(3)})
    (checkpoint / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DamagedError, match="nested too deeply"):
        open_source(checkpoint)


def test_nothing_is_allocated_for_a_file_that_is_smaller_than_it_is_said_to_be(save):
    size = 2**60
    checkpoint = save({"params": {"w": np.zeros(16, np.uint8)}})

    def change(fields):
        fields["files"][0]["bytes"] = 2 * size
        fields["arrays"]["params/w"].update(shape=[size], chunk_shape=[size])
        fields["arrays"]["params/w"]["chunks"][0][2] = size

    craft(checkpoint, change)
    with pytest.raises(DamagedError, match="bytes instead of"):
        np.asarray(open_source(checkpoint).arrays()["params/w"])


def test_a_newer_format_is_told_whatever_else_it_says(save):
    checkpoint = save({"x": np.zeros(3)})
    craft(checkpoint, lambda fields: fields.update(version=2, writer=None))
    with pytest.raises(CheckpointError, match="has format version 2"):
        open_source(checkpoint)


def test_verify_finds_arrays_that_share_bytes_and_places_that_others_are_planned_for(save):
    checkpoint = save({"params": {"w": np.arange(24, dtype=np.float32).reshape(4, 6)}})
    craft(checkpoint, lambda fields: fields["arrays"].update(other=fields["arrays"]["params/w"]))
    assert verify(checkpoint).damage
    craft(checkpoint, lambda fields: fields["arrays"].pop("other"))
    assert not verify(checkpoint).damage
    craft(checkpoint, of_chunk(1, 0))
    assert [(each.piece, each.offset) for each in verify(checkpoint).damage] == [("params/w", 0)]


def test_what_reads_is_the_same_after_sealing(save):
    checkpoint = save({"x": np.arange(3)})
    craft(checkpoint, lambda fields: None)
    assert open_source(checkpoint).arrays()["x"].shape == (3,)
    assert not verify(checkpoint).damage
