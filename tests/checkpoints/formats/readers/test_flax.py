import json

import flax.serialization
import jax.numpy as jnp
import msgpack
import numpy as np
import pytest

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, DamagedError


def write(path, state):
    path.write_bytes(flax.serialization.to_bytes(state))


def test_leaves_of_every_kind_come_back(tmp_path, same_bytes):
    state = {
        "params": [np.arange(6.0).reshape(2, 3), jnp.ones(3, jnp.bfloat16)],
        "scalars": (np.float32(2), np.int64(3), True, 4, 0.5, 1 + 2j),
        "none": None,
        "empty": {},
    }
    write(tmp_path / "x.msgpack", state | {"name": "text"})
    source = open_source(tmp_path / "x.msgpack")
    assert same_bytes(restore(source, state), state)
    assert (source.format, source.extra) == ("Flax msgpack", {"name": "text"})


def test_the_newest_of_several_steps_is_opened(tmp_path):
    for step in (9, 10):
        write(tmp_path / f"checkpoint_{step}", {"step": np.int32(step)})
    (tmp_path / "checkpoint_11").write_text("not msgpack")
    assert open_source(tmp_path).step == 10
    assert open_source(tmp_path).read("step", ()) == 10


def test_a_model_in_several_files_is_one_checkpoint(tmp_path):
    write(tmp_path / "a.msgpack", {"model": {"w": np.zeros(2)}})
    write(tmp_path / "b.msgpack", {"model": {"b": np.ones(2)}})
    weight_map = {"model/w": "a.msgpack", "model/b": "b.msgpack"}
    index = tmp_path / "flax_model.msgpack.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert set(open_source(tmp_path).arrays()) == {"model/w", "model/b"}
    write(tmp_path / "b.msgpack", {"model": {"c": np.ones(2)}})
    with pytest.raises(DamagedError, match=r"b\.msgpack lacks model/b, which .*index\.json lists there"):
        open_source(tmp_path)
    write(tmp_path / "b.msgpack", {"model": {"b": np.ones(2), "left": np.ones(2)}})
    with pytest.raises(CheckpointError, match=r"index\.json does not list model/left of b\.msgpack"):
        open_source(tmp_path)
    (tmp_path / "b.msgpack").unlink()
    with pytest.raises(DamagedError, match=r"b\.msgpack is missing"):
        open_source(tmp_path)
    index.with_name("other.msgpack.index.json").write_text(index.read_text())
    with pytest.raises(CheckpointError, match="has several index files, flax_model"):
        open_source(tmp_path)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    write(tmp_path / "x.msgpack", {"w": np.zeros(100)})
    content = (tmp_path / "x.msgpack").read_bytes()
    (tmp_path / "x.msgpack").write_bytes(content[:-8])
    with pytest.raises(DamagedError, match=r"x\.msgpack is damaged: it is not msgpack as Flax writes it"):
        open_source(tmp_path)


def large(shape, *chunks):
    """Return what an array is that is cut into stretches."""
    numbered = [{str(number): x for number, x in enumerate(each)} for each in (shape, chunks)]
    return {"__msgpack_chunked_array__": True, "shape": numbered[0], "chunks": numbered[1]}


def array(shape, dtype="float32"):
    return msgpack.ExtType(1, msgpack.packb((shape, dtype, bytes(4))))


FOUR, ONE = msgpack.ExtType(1, msgpack.packb(((4,), "float32", bytes(16)))), array([1])
LACKING = large([4], FOUR) | {"chunks": {"1": FOUR}}


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (array([-1, -1]), r"an array has the shape \[-1, -1\]"),
        (array([1.0]), "'float' object cannot be interpreted as an integer"),
        (array([2]), r"an array of float32\[2\] has 4 bytes"),
        (array([1], None), "data type 'None' not understood"),
        (array([0], "object"), "an array of object"),
        (msgpack.ExtType(1, msgpack.packb(((1,), "float32", "text"))), "an array's values are not bytes"),
        (msgpack.ExtType(9, b"what"), "extension 9 is not one of Flax's"),
        ({"a": 1, 2: 3}, "2 is a key, but not a text"),
        (large([5], FOUR), r"shape \(4,\) to \(5,\): the sizes differ"),
        (large([2, 2], 3), r"shape \[2, 2\] are not one-dimensional"),
        (large([4], array([1, 1])), "are not one-dimensional arrays"),
        (large([-2, -2], FOUR), r"an array has the shape \[-2, -2\]"),
        (large([4]), "0 kinds"),
        (LACKING, "lacks chunks, or its entry '0'"),
    ],
)
def test_what_cannot_be_an_array_is_refused(leaf, said, tmp_path):
    (tmp_path / "x.msgpack").write_bytes(msgpack.packb({"first": ONE, "x": leaf}))
    with pytest.raises(DamagedError, match=rf"x\.msgpack is damaged: it is not msgpack .*{said}"):
        open_source(tmp_path)


def test_a_key_that_a_dictionary_has_twice_is_refused(tmp_path):
    (tmp_path / "x.msgpack").write_bytes(b"\x82" + (msgpack.packb("a") + msgpack.packb(ONE)) * 2)
    with pytest.raises(DamagedError, match="a dictionary has the key 'a' twice"):
        open_source(tmp_path)


def test_other_files_are_no_checkpoints(tmp_path):
    (tmp_path / "picture").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        open_source(tmp_path / "picture")
