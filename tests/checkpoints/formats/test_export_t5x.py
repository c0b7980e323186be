"""What we write as T5X is read by what T5X is made of: msgpack by Flax, arrays by TensorStore."""

import json
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import serialization

import meshwright as mw
from checkpoints.formats.readers import t5x
from checkpoints.formats.readers.real import assert_same, restored
from meshwright.base import _tree as tree
from meshwright.checkpoints._formats._export_safetensors import export_safetensors
from meshwright.checkpoints._formats._export_t5x import chunk_shape, export_t5x
from meshwright.cli import main
from meshwright.errors import UsageError

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "target/decoder/wi/kernel": RANDOM.standard_normal((12, 8), np.float32),
    "target/decoder/norm/scale": RANDOM.standard_normal(8, np.float32).astype(ml_dtypes.bfloat16),
    "target/gain": np.array(0.5, np.float32),
    "target/empty": np.zeros((0, 3), np.float32),
    "state/step": np.array(7, np.int32),
    "state/param_states/decoder/wi/kernel/v_row": RANDOM.standard_normal(12, np.float32),
    "flax_mutables/counts": np.array([1, 2, 1 << 31], np.uint32),
    "flax_mutables/a": np.ones(3, np.dtype("<f4").newbyteorder("=")),  # not NumPy's own object for float32
}


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("meshwright.checkpoints._formats._export_t5x._CHUNK_NBYTES", 128)


def test_t5x_can_read_what_we_write(tmp_path, small_chunks):
    written = export_t5x(tree.nested(ARRAYS), tmp_path, step=7)
    assert written == tmp_path / "checkpoint_7"
    found = t5x.read(written)
    assert_same({name: found[name] for name in ARRAYS}, ARRAYS)
    zarray = t5x.zarray(written, "target/decoder/wi/kernel")
    assert (zarray["chunks"], zarray["compressor"]) == ([6, 4], {"id": "gzip", "level": 1})


def test_from_t5x_to_our_format_and_back_is_equal(tmp_path, small_chunks):
    names = {name: x for name, x in ARRAYS.items() if x.ndim == 0}
    theirs = t5x.write(
        tmp_path / "theirs/checkpoint_7", {k: v for k, v in ARRAYS.items() if v.size}, in_tree=names
    )
    assert main(["convert", str(theirs), str(tmp_path / "ours")]) == 0
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "t5x"]) == 0
    back = tmp_path / "back/checkpoint_7"
    assert_same(t5x.read(back), t5x.read(theirs))
    assert_same(restored(mw.checkpoints.open_source(back)), restored(mw.checkpoints.open_source(theirs)))


def test_an_optimizers_state_alone_is_written_too(tmp_path):
    state = {"state/param_states/kernel": np.ones(3, np.float32)}
    found = t5x.read(export_t5x(tree.nested(state), tmp_path, step=7))
    assert_same(found, state | {"state/step": np.array(7, np.int32)})


def test_a_state_of_ours_has_the_names_of_t5x(tmp_path, mesh):
    state = mw.training.state_from({"w": jnp.ones((8, 4))}, optax.adam(0.1), 3, mw.Layout(mesh))
    found = t5x.read(export_t5x(state, tmp_path, step=0, dtype="bfloat16"))
    assert found.keys() == {
        "target/w",
        "state/step",
        "state/param_states/0/count",
        "state/param_states/0/mu/w",
        "state/param_states/0/nu/w",
    }
    assert found["target/w"].dtype == ml_dtypes.bfloat16
    assert found["state/param_states/0/mu/w"].dtype == np.float32


def test_names_choose_and_rename(tmp_path):
    names = {"params/w": "target/decoder/kernel", "step": None}.get
    written = export_t5x({"params": {"w": np.ones(2)}, "step": 3}, tmp_path, step=3, names=names)
    assert t5x.read(written).keys() == {"target/decoder/kernel", "state/step"}
    assert sorted(path.name for path in written.iterdir()) == ["checkpoint", "target.decoder.kernel"]


def test_a_state_has_its_parts_without_arrays_too_as_flax_wants_them(tmp_path):
    params = {"w": np.ones((2, 3), np.float32), "frozen": None}
    held = {"w": params["w"]}
    states = optax.chain(optax.clip(1.0), optax.adam(0.1)).init(held), optax.sgd(0.1).init(held)
    written = export_t5x({"params": params, "opt_state": states}, tmp_path, step=1)
    optimizer = serialization.msgpack_restore((written / "checkpoint").read_bytes())["optimizer"]
    wanted = jax.tree.map(lambda x: 0, states)
    assert serialization.from_state_dict(wanted, optimizer["state"]["param_states"])[0][0] == ()
    assert optimizer["target"].keys() == {"w", "frozen"}
    source = mw.checkpoints.cast(mw.checkpoints.open_source(written), [("target/.*", "bfloat16")])
    again = export_t5x(mw.checkpoints._internal.with_changes(source), tmp_path / "again", step=1)
    assert trees(again) == trees(written)


def trees(directory):
    content = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    return jax.tree.structure(content["optimizer"], is_leaf=lambda x: isinstance(x, dict) and "driver" in x)


def test_nothing_is_there_before_all_of_it_is(tmp_path):
    def read(index):
        raise RuntimeError("the disk is gone")

    broken = mw.checkpoints.as_source(
        {"params/a": np.ones(3), "params/b": mw.checkpoints.LazyArray((3,), np.dtype("float32"), read)}, "x"
    )
    with pytest.raises(RuntimeError, match="the disk is gone"):
        export_t5x(broken, tmp_path, step=1)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(tmp_path):
    export_t5x({"params": {"w": np.ones(3)}}, tmp_path, step=1)
    with pytest.raises(UsageError, match="checkpoint_1 exists already"):
        export_t5x({"params": {"w": np.zeros(3)}}, tmp_path, step=1)


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint32",
        "int64",
        "float64",
        "complex64",
        "bfloat16",
        "int4",
        "float8_e5m2",
        "float8_e4m3fn",
    ],
)
def test_every_dtype_that_t5x_has_is_written(dtype, tmp_path):
    w = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, dtype, dtype))
    written = export_t5x({"params": {"w": w, "scalar": w[0, 1]}}, tmp_path, step=1)
    wanted = {"target/w": w, "target/scalar": w[0, 1], "state/step": np.array(1, np.int32)}
    assert_same(t5x.read(written), wanted)
    assert_same(restored(mw.checkpoints.open_source(written)), wanted)


@pytest.mark.parametrize(
    "leaf", [np.ones(2, np.uint16), np.ones(2, ml_dtypes.uint4), jax.random.key(0), "text"], ids=str
)
def test_what_t5x_has_no_dtype_for_is_refused_by_name(leaf, tmp_path):
    with pytest.raises(UsageError, match=r"T5X cannot hold the dtypes of opt_state/x \("):
        export_t5x({"params": {"w": np.ones(2)}, "opt_state": {"x": leaf}}, tmp_path, step=1)
    assert list(tmp_path.iterdir()) == []


def test_keys_are_told_apart_from_what_can_be_cast(tmp_path):
    held = {"params": {"a": jax.random.key(0), "b": np.ones(2, np.uint16)}}
    with pytest.raises(UsageError) as raised:
        export_t5x(held, tmp_path, step=1)
    said = str(raised.value)
    assert "params/a (key<threefry2x32>), params/b (uint16). Cast them" in said
    assert "PRNG keys cannot be cast: export their `jax.random.key_data`" in said
    with pytest.raises(UsageError, match="a is of type key<threefry2x32>, which safetensors has not"):
        export_safetensors({"a": jax.random.key(0)}, tmp_path)


def test_a_number_that_does_not_fit_is_refused_and_leaves_no_trace(tmp_path):
    with pytest.raises(UsageError, match=r"cannot convert params/w to float16: 1e\+06 does not fit"):
        export_t5x({"params": {"w": np.float32([1, 1e6])}}, tmp_path, step=1, dtype="float16")
    with pytest.raises(UsageError, match="cannot convert to int8"):
        export_t5x({"params": {"w": np.float32([1, 1e6])}}, tmp_path, step=1, dtype="int8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, 1 << 31])
def test_steps_that_t5x_cannot_count_are_refused(step, tmp_path):
    with pytest.raises(UsageError, match=f"step {step} is not valid in T5X"):
        export_t5x({"params": {"w": np.ones(2)}}, tmp_path, step=step)


def test_what_t5x_could_not_tell_apart_or_has_no_parameters_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"would get the same directory, target\.a\.b"):
        export_t5x({"params": {"a": {"b": np.ones(3)}, "a.b": np.ones(3)}}, tmp_path, step=1)
    with pytest.raises(UsageError, match="there are no parameters for T5X among w: they lie below target/"):
        export_t5x({"w": np.ones(3)}, tmp_path, step=1)
    within = {"params/a": "target/x", "params/b": "target/x/y"}.get
    with pytest.raises(UsageError, match="params/b would lie below params/a, which is an array"):
        export_t5x({"params": {"a": np.ones(2), "b": np.ones(3)}}, tmp_path, step=1, names=within)


@pytest.mark.parametrize(
    ("shape", "num_values", "chunks"),
    [
        ((8192, 8192), 1 << 24, (4096, 4096)),
        ((8192, 8193), 1 << 24, (4096, 2731)),
        ((8193,), 4096, (2731,)),
        ((7,), 6, (1,)),
        ((), 1, ()),
    ],
)
def test_chunks_are_those_of_t5x(shape, num_values, chunks):
    assert chunk_shape(shape, num_values) == chunks


def test_a_state_on_several_devices_is_written_whole(tmp_path, mesh):
    array = jax.device_put(np.arange(16.0, dtype=np.float32), jax.NamedSharding(mesh, jax.P("data")))
    found = t5x.read(export_t5x({"params": {"w": array}}, tmp_path, step=1))
    assert found["target/w"].tolist() == list(range(16))


def test_an_array_is_written_in_the_pieces_in_which_it_lies(tmp_path):
    x = np.zeros((4, 1 << 20), np.float32)
    lazy = mw.checkpoints.LazyArray(x.shape, x.dtype, lambda index: x[index], stored_chunks=(1, 1 << 20))
    export_t5x(mw.checkpoints.as_source({"params/x": lazy}, "x"), tmp_path, step=1)
    metadata = json.loads((tmp_path / "checkpoint_1/target.x/.zarray").read_text())
    assert metadata["chunks"] == [1, 1 << 20]


def test_one_chunk_is_held_at_a_time(tmp_path):
    def made(index):
        return np.zeros((1, 1 << 20), np.float32)  # 4 MiB

    lazy = mw.checkpoints.LazyArray((8, 1 << 20), np.dtype("f4"), made, stored_chunks=(1, 1 << 20))
    tracemalloc.start()
    export_t5x(mw.checkpoints.as_source({"params/x": lazy}, "x"), tmp_path, step=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 7 << 20
