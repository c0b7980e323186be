"""Checkpoints of T5 by Mesh TensorFlow, read without TensorFlow."""

import json
import re
import sys

import cramjam
import jax
import ml_dtypes
import numpy as np
import pytest

import meshwright as mw
from checkpoints.formats.readers import tensorflow
from checkpoints.formats.readers.real import FIXTURES, arrays_of, assert_same, restored, wanted_of
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._source import subtree
from meshwright.errors import CheckpointError, DamagedError, UsageError

RANDOM = np.random.default_rng(0)
Q = RANDOM.standard_normal((8, 12), np.float32)
BIAS = RANDOM.standard_normal((3, 5), np.float32)
SCALE = RANDOM.standard_normal(8, np.float32).astype(ml_dtypes.bfloat16)
VARIABLES = {
    "decoder/block_000/layer_000/SelfAttention/q": Q,
    "decoder/block_000/layer_000/SelfAttention/q_slot_vr": Q[:, 0],
    "decoder/block_000/layer_000/SelfAttention/q_slot_vc": Q[0],
    "decoder/block_000/layer_000/SelfAttention/relative_attention_bias": BIAS,
    "decoder/block_000/layer_002/rms_norm/scale": SCALE,
    "decoder/block_000/layer_002/rms_norm/scale_slot_v": Q[:, 1],
    "global_step": np.array(1_000_002, np.int64),
}
QUERY, NORM = "decoder/layers_0/self_attention/query/kernel", "decoder/layers_0/pre_mlp_layer_norm/scale"
ZERO = np.zeros(1, np.float32)
RENAMED = {
    f"target/{QUERY}": Q,
    f"state/param_states/{QUERY}/m": ZERO,
    f"state/param_states/{QUERY}/v": ZERO,
    f"state/param_states/{QUERY}/v_row": Q[:, 0],
    f"state/param_states/{QUERY}/v_col": Q[0],
    "target/decoder/relpos_bias/rel_embedding": BIAS,
    "state/param_states/decoder/relpos_bias/rel_embedding/m": ZERO,
    f"target/{NORM}": SCALE,
    f"state/param_states/{NORM}/m": ZERO,
    f"state/param_states/{NORM}/v": Q[:, 1],
    f"state/param_states/{NORM}/v_row": ZERO,
    f"state/param_states/{NORM}/v_col": ZERO,
    "state/step": np.array(1_000_002, np.int32),
}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes variables as TensorFlow does."""

    def write(variables=VARIABLES, **how):
        return tensorflow.write(tmp_path / "t5/model.ckpt-1000002", variables, **how)

    return write


@pytest.mark.others
@pytest.mark.parametrize("where", ["", "checkpoint", "model.ckpt-1000002", "model.ckpt-1000002.index"])
def test_a_real_checkpoint_is_opened_by_each_of_its_names(where):
    source = mw.checkpoints.open_source(FIXTURES / "t5_tensorflow/t5_1_0" / where)
    assert (source.step, len(source.arrays())) == (1_000_002, len(wanted_of("t5_tensorflow/t5_1_0")))


@pytest.mark.others
def test_a_real_index_tells_all_names_and_a_missing_shard_is_told():
    source = mw.checkpoints.open_source(FIXTURES / "t5_tensorflow/mtf_tiny_t5")
    path = FIXTURES / "t5_tensorflow/mtf_tiny_t5.index.expected.json"
    wanted = json.loads(path.read_text())["variables"]
    del wanted["global_step"]  # which is int64 there and int32 in T5X
    for each in wanted.values():
        array = source.arrays()[re.sub("/layers_0(?=/relpos_bias)", "", each["t5x"])]
        assert (list(array.shape), array.dtype.name) == (each["shape"], each["dtype"])
    with pytest.raises(DamagedError, match=r"data-00001-of-00002 is missing"):
        restored(subtree(source, "target"))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("compress", [False, True])
def test_variables_have_the_names_and_slots_of_t5x(shards, compress, written):
    source = mw.checkpoints.open_source(written(shards=shards, compress=compress).parent)
    assert_same(restored(source), RENAMED)
    assert (source.step, source.format) == (1_000_002, "T5 by Mesh TensorFlow")


def test_of_several_the_one_that_their_directory_names_is_taken_or_else_the_newest(written):
    directory = written().parent
    for step in (9, 10):
        tensorflow.write(directory / f"model.ckpt-{step}", {"global_step": np.array(step, np.int64)})
    (directory / "checkpoint").write_text(
        'model_checkpoint_path: "model.ckpt-9"\nall_model_checkpoint_paths: "model.ckpt-10"\n'
    )
    assert mw.checkpoints.open_source(directory).step == 9
    (directory / "faiss.index").mkdir()
    (directory / "checkpoint").unlink()  # as those who copy a checkpoint's own files leave it
    assert mw.checkpoints.open_source(directory).step == 1_000_002


@pytest.mark.parametrize("damage", ["is missing", "does not end as a LevelDB table"])
def test_an_index_that_is_named_and_not_there_or_empty_is_told(damage, written):
    prefix = written()
    index = prefix.with_name(f"{prefix.name}.index")
    index.unlink() if damage == "is missing" else index.write_bytes(b"")
    with pytest.raises(DamagedError, match=rf"model\.ckpt-1000002\.index .*{damage}"):
        mw.checkpoints.open_source(prefix.parent)


def test_a_state_file_with_a_wrong_byte_is_refused_or_read_but_breaks_nothing(written):
    state = written().parent / "checkpoint"
    whole = state.read_bytes()
    for place in range(len(whole)):
        for octet in (0x00, 0xFF):
            state.write_bytes(whole[:place] + bytes([octet]) + whole[place + 1 :])
            try:
                assert mw.checkpoints.open_source(state.parent).step == 1_000_002
            except DamagedError:
                continue


def test_a_bias_of_several_layers_is_of_each_of_them(written):
    bias = "decoder/block_001/layer_000/SelfAttention/relative_attention_bias"
    names = mw.checkpoints.open_source(written({**VARIABLES, bias: BIAS})).arrays()
    assert {f"target/decoder/layers_{layer}/relpos_bias/rel_embedding" for layer in (0, 1)} <= names.keys()


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("shared/embedding", "token_embedder/embedding"),
        ("transformer/embedding", "decoder/token_embedder/embedding"),
        ("transformer/logits/kernel", "decoder/logits_dense/kernel"),
        ("transformer/block_011/layer_001/layer_norm/scale", "decoder/layers_11/pre_mlp_layer_norm/scale"),
        ("transformer/block_002/layer_000/SelfAttention/o", "decoder/layers_2/self_attention/out/kernel"),
        ("encoder/block_002/layer_000/SelfAttention/v", "encoder/layers_2/attention/value/kernel"),
        ("encoder/block_002/layer_001/DenseReluDense/wi_1/kernel", "encoder/layers_2/mlp/wi_1/kernel"),
        ("encoder/final_layer_norm/scale", "encoder/encoder_norm/scale"),
        ("decoder/rms_norm/scale", "decoder/decoder_norm/scale"),
        (
            "decoder/block_000/layer_001/layer_norm/scale",
            "decoder/layers_0/pre_cross_attention_layer_norm/scale",
        ),
        (
            "decoder/block_000/layer_001/EncDecAttention/k",
            "decoder/layers_0/encoder_decoder_attention/key/kernel",
        ),
    ],
)
def test_every_kind_of_variable_is_renamed(name, renamed, written):
    assert f"target/{renamed}" in mw.checkpoints.open_source(written({name: SCALE})).arrays()


def test_what_is_not_of_t5_is_refused_by_name_and_to_be_had_without_its_names(written):
    variables = {**VARIABLES, "a/w": Q, "b_slot_v": Q}
    with pytest.raises(
        CheckpointError, match="has 2 variables that T5 by Mesh TensorFlow does not have: a/w, b_slot_v"
    ):
        mw.checkpoints.open_source(written(variables))
    for slot in ("", "m", "vrc"):
        with pytest.raises(CheckpointError, match=f"does not have: shared/embedding_slot_{slot}."):
            mw.checkpoints.open_source(written({"shared/embedding": Q, f"shared/embedding_slot_{slot}": Q}))
    source = mw.checkpoints.open_tensorflow(written(variables))
    assert_same(restored(source), variables)
    assert (source.step, source.format) == (1_000_002, "TensorFlow")


def test_of_other_models_variables_are_called_as_tensorflow_calls_them(written):
    kept = "layer/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    variables = {kept: Q, "global_step": np.array(7, np.int64)}
    source = mw.checkpoints.open_source(written(variables).parent)
    assert_same(restored(source), variables)
    assert source.format == "TensorFlow"
    assign = [(r"params/(.*)", r"\1/.ATTRIBUTES/VARIABLE_VALUE")]
    found = mw.restore(source, {"params": {"layer": {"kernel": Q}}}, assign=assign, ignore="global_step")
    assert found["params"]["layer"]["kernel"].tolist() == Q.tolist()


@pytest.mark.others
def test_variables_of_a_real_checkpoint_are_those_that_tensorflow_has():
    source = mw.checkpoints.open_tensorflow(FIXTURES / "t5_tensorflow/t5_1_0")
    assert_same(restored(source), arrays_of("t5_tensorflow/t5_1_0.source.npz"))


def test_names_of_ones_own_are_given_to_the_variables_of_any_model(written):
    def translated(path):
        arrays = mw.checkpoints.open_tensorflow(path).arrays()
        new = {"params/embedding": arrays["transformer/embedding"]}
        return mw.checkpoints.as_source(new, path)

    source = translated(str(written({"transformer/embedding": Q, "global_step": np.array(7, np.int64)})))
    assert_same(restored(source), {"params/embedding": Q})


def test_what_is_no_checkpoint_of_tensorflow_is_said_to_be_none(tmp_path):
    with pytest.raises(CheckpointError, match="has no checkpoint of TensorFlow"):
        mw.checkpoints.open_tensorflow(tmp_path)


def test_an_index_that_is_compressed_in_another_way_is_refused(written):
    with pytest.raises(DamagedError, match="has an unknown compression, number 2"):
        mw.checkpoints.open_source(written(compress=2))


def test_two_variables_of_one_parameter_are_refused_by_name(written):
    norm = "encoder/block_000/layer_000/{}_norm/scale".format
    with pytest.raises(CheckpointError, match=f"{norm('layer')} and {norm('rms')}"):
        mw.checkpoints.open_source(written({norm("layer"): SCALE, norm("rms"): SCALE}))


def test_a_variable_saved_in_slices_and_text_are_told_apart(written):
    entry = tensorflow.field(1, 7)
    assert len(mw.checkpoints.open_source(written(more={b"_OBJECT_GRAPH": entry})).arrays()) == len(RENAMED)
    sliced = tensorflow.field(1, 1) + tensorflow.field(7, b"\n\0")
    with pytest.raises(CheckpointError, match="w: it was saved in slices"):
        mw.checkpoints.open_source(written(more={b"w": sliced}))


def test_a_store_is_read_as_a_directory_is(written):
    prefix = written(shards=2)
    for file in prefix.parent.iterdir():
        location(f"memory://t5/{file.name}").put(file.read_bytes())
    assert_same(restored(mw.checkpoints.open_source("memory://t5")), RENAMED)
    assert_same(restored(mw.checkpoints.open_source(f"memory://t5/{prefix.name}")), RENAMED)


def test_only_the_bytes_that_are_wanted_are_needed(written):
    prefix = written({"shared/embedding": Q})
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[: 5 * Q[0].nbytes])
    array = mw.checkpoints.open_source(prefix).arrays()["target/token_embedder/embedding"]
    assert array.read((slice(1, 5), slice(2, 4))).tolist() == Q[1:5, 2:4].tolist()
    with pytest.raises(DamagedError, match="ends at byte 240"):
        np.asarray(array)


def test_a_wrong_byte_in_the_data_is_found_where_a_variable_is_read_whole(written):
    prefix = written({"shared/embedding": Q})
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[77] ^= 1
    data.write_bytes(content)
    with pytest.raises(DamagedError, match="the CRC-32C of shared/embedding is not the one"):
        restored(mw.checkpoints.open_source(prefix))


@pytest.mark.parametrize("compress", [False, True])
def test_an_index_with_a_wrong_byte_or_cut_off_is_refused(compress, written):
    prefix = written(compress=compress)
    index = prefix.with_name(f"{prefix.name}.index")
    whole = index.read_bytes()
    for place in (*range(0, len(whole) - 48, 31), len(whole) - 1):
        index.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(DamagedError):
            mw.checkpoints.open_source(prefix)
        index.write_bytes(whole[:place])
        with pytest.raises(CheckpointError):
            mw.checkpoints.open_source(prefix)


def test_snappy_is_decompressed(written, monkeypatch):
    monkeypatch.setattr(tensorflow, "literal", lambda content: bytes(cramjam.snappy.compress_raw(content)))
    assert_same(restored(mw.checkpoints.open_source(written(compress=True))), RENAMED)


@pytest.mark.parametrize(
    "stored",
    [b"", b"\x05\x00", b"\x02\x05\x01", b"\x04\x00a\x01\x00", b"\x01\x00ab", b"\xff\xff\xff\xff\x0f\x00a"],
)
def test_snappy_that_is_damaged_is_refused(stored, written, monkeypatch):
    """Although its checksum is right."""
    monkeypatch.setattr(tensorflow, "literal", lambda content: stored)
    with pytest.raises(DamagedError, match=r"snappy|Snappy"):
        mw.checkpoints.open_source(written(compress=True))


def test_without_cramjam_it_is_said_what_to_install(written, monkeypatch):
    prefix = written(compress=True)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(
        UsageError, match=r"\.index, which Snappy compressed,(?s:.*)pip install 'meshwright\[t5\]'"
    ):
        mw.checkpoints.open_source(prefix)


def test_it_is_restored_into_a_model_over_a_mesh(written, mesh):
    target = {"w": jax.ShapeDtypeStruct(Q.shape, Q.dtype, sharding=jax.NamedSharding(mesh, jax.P("data")))}
    found = mw.restore(
        mw.checkpoints.open_source(written()), target, assign=[("w", f"target/{QUERY}")], ignore=".*"
    )
    assert np.asarray(found["w"]).tolist() == Q.tolist()
