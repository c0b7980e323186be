"""Checkpoints of T5X, of every age."""

import json
import re
import sys

import jax
import ml_dtypes
import numpy as np
import optax
import pytest
from flax import serialization

import meshwright as mw
from checkpoints.formats.readers import redco, t5x, tensorflow
from checkpoints.formats.readers.real import FIXTURES, WITHOUT_METADATA, assert_same, restored
from meshwright.base import _tree as tree
from meshwright.base._storage import _obstore, _path
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._restore import load, load_lazily
from meshwright.checkpoints._arrays._source import cast
from meshwright.errors import CheckpointError, DamagedError, UsageError

RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.standard_normal((12, 8), np.float32)
ARRAYS = {
    "target/decoder/wi/kernel": KERNEL,
    "target/decoder/norm/scale": RANDOM.standard_normal(8, np.float32).astype(ml_dtypes.bfloat16),
    "target/gain": np.array(0.5, np.float32),
    "state/step": np.array(1_000_001, np.int32),
    "state/param_states/decoder/wi/kernel/v_row": RANDOM.standard_normal(12, np.float32),
}
REST = {"state/param_states/decoder/norm/scale": None, "state/param_states/empty": {}}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes the arrays above as step 5."""

    def write(arrays=ARRAYS, **how):
        how = {"in_tree": ("target/gain", "state/step"), "rest": REST} | how
        return t5x.write(tmp_path / "model/checkpoint_5", arrays, **how)

    return write


@pytest.mark.others
def test_a_real_chunk_that_is_missing_is_told_by_name():
    source = mw.checkpoints.open_source(FIXTURES / "t5x/variants/missing_chunk")
    with pytest.raises(DamagedError, match=r"target/w: the chunk .*target\.w/0\.0 is missing"):
        restored(source)


@pytest.mark.others
def test_a_real_checkpoint_without_metadata_is_refused_with_what_to_do():
    with pytest.raises(
        CheckpointError, match=r"state/step: its \.zarray is missing, .* open_t5x\(path, like=tree\)"
    ):
        mw.checkpoints.open_source(FIXTURES / WITHOUT_METADATA)


def test_what_t5x_writes_is_read_by_its_names_and_none_is_no_leaf(written):
    source = mw.checkpoints.open_source(written())
    assert_same(restored(source), ARRAYS)
    assert (source.step, source.format, source.writer) == (5, "T5X", {"version": 3})


def before_kvstore_had_paths(path, array, chunks, compressor):
    spec = t5x.spec_of(path, array, chunks, compressor)
    del spec["kvstore"]["path"]
    return {**spec, "path": path.rstrip("/")}


def in_a_bucket(path, *rest):
    spec = t5x.spec_of(path.rstrip("/"), *rest)
    return {**spec, "kvstore": {"driver": "gcs", "bucket": "t5x-dummy-bucket", "path": path}}


def in_a_bucket_before_kvstore_had_paths(path, *rest):
    return {**before_kvstore_had_paths(path, *rest), "kvstore": {"driver": "gcs", "bucket": "a-bucket"}}


def with_transform(*args):
    return {**t5x.spec_of(*args), "transform": {"input_inclusive_min": [0], "input_exclusive_max": [[8]]}}


def with_an_address(path, *rest):
    return {**t5x.spec_of(path, *rest), "kvstore": f"file:///elsewhere/{path}"}


SPECS = [
    before_kvstore_had_paths,
    in_a_bucket,
    in_a_bucket_before_kvstore_had_paths,
    with_transform,
    with_an_address,
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("version", [2, 3])
def test_specs_of_every_age_are_understood(spec, version, written):
    assert_same(restored(mw.checkpoints.open_source(written(spec=spec, version=version))), ARRAYS)


def without_a_path(*args):
    return {**t5x.spec_of(*args), "kvstore": {"driver": "file"}}


def of_another_driver(*args):
    return {**t5x.spec_of(*args), "driver": "n5"}


@pytest.mark.parametrize(
    ("spec", "told"),
    [(without_a_path, "does not name a directory"), (of_another_driver, "TensorStore's driver n5")],
)
def test_specs_of_arrays_that_are_not_read_are_refused_and_all_are_listed(spec, told, written):
    with pytest.raises(CheckpointError) as raised:
        mw.checkpoints.open_source(written(spec=spec))
    assert len(re.findall(rf"\n  (?:target|state)/\S+: .*{told}", str(raised.value))) == 3


def test_parameters_may_be_called_as_the_parts_of_a_spec_are(written):
    arrays = {f"target/{key}/kernel": KERNEL for key in ("driver", "kvstore", "metadata")}
    assert_same(restored(mw.checkpoints.open_source(written(arrays, rest={}))), arrays)


def test_text_is_no_array_and_is_kept_beside_them(written):
    source = mw.checkpoints.open_source(written(rest={"target/note": "of May"}))
    assert_same(restored(source), ARRAYS)
    assert source.extra == {"pinned": False, "target/note": "of May"}


def test_a_tree_without_a_state_is_refused(written):
    file = written() / "checkpoint"
    for content in ({"version": 3}, {"optimizer": None, "version": 3}):
        file.write_bytes(serialization.msgpack_serialize(content))
        with pytest.raises(DamagedError, match="does not hold the tree of a state"):
            mw.checkpoints.open_source(file)


def test_parts_beside_the_state_are_refused_by_name(tmp_path):
    content = {"version": 3, "optimizer": {"target": {"w": np.ones(2, np.float32)}}, "averages": {"w": 1}}
    (tmp_path / "checkpoint_5").write_bytes(serialization.to_bytes(content))
    with pytest.raises(CheckpointError, match="has averages beside version and optimizer"):
        mw.checkpoints.open_source(tmp_path)


@pytest.mark.parametrize("compressor", ["gzip", "zlib", "zstd", "bz2", None])
@pytest.mark.parametrize("has_metadata", [True, False])
def test_arrays_are_read_in_chunks_of_every_compressor(compressor, has_metadata, written):
    chunks = {"target/decoder/wi/kernel": (5, 3)}  # which divide neither dimension
    directory = written(compressor=compressor and {"id": compressor, "level": 1}, chunks=chunks)
    for file in [] if has_metadata else directory.glob("*/.zarray"):
        file.unlink()
    assert_same(restored(mw.checkpoints.open_source(directory)), ARRAYS)


def test_what_t5x_writes_itself_is_read_without_tensorstore_and_zstd_says_what_to_install(
    written, monkeypatch
):
    directory = written()
    t5x.write(
        directory.with_name("checkpoint_4"), {"target/w": KERNEL}, compressor={"id": "zstd", "level": 1}
    )
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    assert_same(restored(mw.checkpoints.open_source(directory)), ARRAYS)
    source = mw.checkpoints.open_source(directory.with_name("checkpoint_4"))
    with pytest.raises(
        UsageError,
        match=r"compressed by .* needs the package tensorstore(?s:.*)pip install 'meshwright\[tensorstore\]'",
    ):
        restored(source)


def test_an_array_of_the_tree_may_be_cut_into_stretches(written, monkeypatch, mesh):
    monkeypatch.setattr("flax.serialization.MAX_CHUNK_SIZE", 100)
    source = mw.checkpoints.open_source(written(in_tree=ARRAYS))
    assert_same(restored(source, mesh), ARRAYS)
    part = source.arrays()["target/decoder/wi/kernel"].read((slice(3, 7), slice(1, 2)))
    assert part.tolist() == KERNEL[3:7, 1:2].tolist()


def test_only_the_chunks_that_are_wanted_are_read(written):
    directory = written(chunks={"target/decoder/wi/kernel": (4, 4)})
    for chunk in ("0.0", "0.1", "1.0", "2.0"):
        (directory / "target.decoder.wi.kernel" / chunk).unlink()
    array = mw.checkpoints.open_source(directory).arrays()["target/decoder/wi/kernel"]
    assert array.read((slice(5, 12), slice(4, 8))).tolist() == KERNEL[5:, 4:].tolist()


def test_a_chunk_is_read_once_for_all_devices_of_a_process(written, mesh, monkeypatch):
    source = mw.checkpoints.open_source(written(chunks={"target/decoder/wi/kernel": (6, 8)}))
    read, read_file = [], _path.read_file
    monkeypatch.setattr(_path, "read_file", lambda path: read.append(path.name) or read_file(path))
    restored(mw.checkpoints.subtree(source, "target/decoder/wi"), mesh)
    assert sorted(read) == ["0.0", "1.0"]


def test_the_newest_complete_checkpoint_is_taken_and_a_newer_one_is_told_of(written, caplog):
    directory = written()
    for name in ("checkpoint_42", "checkpoint_7", "checkpoint_999.tmp-0", "checkpoint_1000"):
        arrays = {"target/w": np.full(2, len(name), np.float32)}
        t5x.write(directory.parent / name, arrays)
    (directory.parent / "checkpoint_1000/checkpoint").unlink()
    assert mw.checkpoints.open_source(directory.parent).step == 42
    assert "checkpoint_1000 is not complete; the newest that is: checkpoint_42" in caplog.text


@pytest.mark.parametrize("where", ["", "checkpoint_5", "checkpoint_5/", "checkpoint_5/checkpoint"])
def test_it_is_opened_by_each_of_its_names(where, written):
    source = mw.checkpoints.open_source(f"{written().parent}/{where}")
    assert (source.step, source.arrays().keys()) == (5, ARRAYS.keys())


def test_step_0_is_a_step(tmp_path):
    t5x.write(tmp_path / "checkpoint_0", {"target/w": KERNEL})
    assert mw.checkpoints.open_source(tmp_path).step == 0


def test_a_save_that_did_not_come_to_its_end_is_no_checkpoint(written):
    directory = written()
    (directory / "checkpoint").unlink()
    directory.rename(directory.with_name("checkpoint_5.tmp-1654000000"))
    with pytest.raises(
        CheckpointError, match=r"only checkpoint_5\.tmp-1654000000: a save that was not completed"
    ):
        mw.checkpoints.open_source(directory.parent)


def test_arrays_without_the_tree_are_no_checkpoint(written):
    directory = written()
    (directory / "checkpoint").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match="_5 has arrays of T5X, but its file checkpoint, which describes"
    ):
        mw.checkpoints.open_source(directory)
    (directory / "checkpoint").unlink()
    with pytest.raises(
        CheckpointError, match="_5 has arrays of T5X, but its file checkpoint, which describes"
    ):
        mw.checkpoints.open_source(directory.parent)


def test_what_is_none_of_t5x_is_said_to_be_none(tmp_path):
    with pytest.raises(CheckpointError, match=r"has no complete T5X checkpoint\.$"):
        mw.checkpoints.open_t5x(tmp_path)


def test_of_several_files_the_newest_is_taken(tmp_path):
    for step in (9, 10):
        content = {"version": 3, "optimizer": {"target": {"w": np.full(2, step, np.float32)}}}
        (tmp_path / f"checkpoint_{step}").write_bytes(serialization.msgpack_serialize(content))
    source = mw.checkpoints.open_source(tmp_path)
    assert (source.step, source.format, np.asarray(source.arrays()["target/w"]).tolist()) == (
        10,
        "T5X",
        [10, 10],
    )


def test_a_store_is_asked_a_few_times_for_each_step_and_not_for_each_array(tmp_path, monkeypatch):
    arrays = {f"target/layers_{layer}/w": np.ones(2, np.float32) for layer in range(100)}
    for step in (1, 2):
        for file in t5x.write(tmp_path / f"checkpoint_{step}", arrays).rglob("*"):
            if file.is_file():
                location(f"memory://asked/{file.relative_to(tmp_path)}").put(file.read_bytes())
    asked = []
    for name in ("below", "children", "look"):
        ask = getattr(_obstore.Obstore, name)
        monkeypatch.setattr(_obstore.Obstore, name, lambda *args, ask=ask: asked.append(args) or ask(*args))
    assert mw.checkpoints.open_source("memory://asked").step == 2
    assert len(asked) < len(arrays)


def test_a_missing_chunk_is_told_by_name_and_is_not_zeros(written):
    directory = written()
    (directory / "target.decoder.wi.kernel/0.0").unlink()
    with pytest.raises(DamagedError, match=r"target/decoder/wi/kernel: the chunk .*/0\.0 is missing"):
        restored(mw.checkpoints.open_source(directory))


def test_a_directory_may_have_been_moved_and_renamed(written, tmp_path):
    moved = written().rename(tmp_path / "mine")
    (moved / "PINNED").write_text("1")
    source = mw.checkpoints.open_source(moved)
    assert (source.step, source.extra) == (1_000_001, {"pinned": True})


@pytest.mark.parametrize("version", [0, 1, 4])
def test_other_versions_are_refused(version, written):
    with pytest.raises(CheckpointError, match=f"has T5X's format version {version}, but only 2 and 3"):
        mw.checkpoints.open_source(written(version=version))


def flat(directory):
    """Make of a checkpoint one of version 0: the state alone, without a word of a version."""
    content = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(content["optimizer"]))
    return directory


@pytest.mark.parametrize("where", ["", "checkpoint_5", "checkpoint_5/checkpoint"])
def test_specs_without_a_version_are_of_version_0_and_no_parameters(where, written):
    directory = flat(written())
    with pytest.raises(
        CheckpointError, match=r"has T5X's format version 0, but only 2 and 3.*versions=\(0, 1\)"
    ):
        mw.checkpoints.open_source(directory.parent / where)


def test_old_versions_are_opened_as_they_are_where_they_are_asked_for(written):
    directory = written(version=1)
    for place in (directory, flat(directory)):
        source = mw.checkpoints.open_t5x(place.parent, versions=(0, 1))
        assert_same(restored(source), ARRAYS)
        with pytest.raises(CheckpointError, match="has T5X's format version"):
            mw.checkpoints.open_t5x(place)


@pytest.mark.parametrize("dtype", ["<i4", ">f4", "<u2"])
@pytest.mark.parametrize("version", [2, 3])
def test_dtypes_that_differ_between_tree_and_array_are_damage(dtype, version, written):
    directory = written(version=version)
    zarray = t5x.zarray(directory, "target/decoder/wi/kernel") | {"dtype": dtype}
    (directory / "target.decoder.wi.kernel/.zarray").write_text(json.dumps(zarray))
    with pytest.raises(DamagedError, match=r"wi/kernel: it has dtype .* in its .zarray, but float32 in the"):
        mw.checkpoints.open_source(directory)


@pytest.mark.slow
def test_no_flipped_bit_of_what_is_said_beside_an_array_gives_other_values(written):
    file = written() / "target.decoder.wi.kernel/.zarray"
    whole = file.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                found = mw.checkpoints.open_source(file.parents[1]).arrays()["target/decoder/wi/kernel"]
                assert np.asarray(found).tobytes() == KERNEL.tobytes()
            except CheckpointError:
                continue


def test_bits_of_bfloat16_are_read_of_version_2_and_refused_of_version_3(tmp_path):
    scale = ARRAYS["target/decoder/norm/scale"]
    bits = {"target/scale": scale.view(np.uint16)}
    old = mw.checkpoints.open_source(t5x.write(tmp_path / "old/checkpoint_1", bits, version=2))
    assert_same(restored(old), {"target/scale": scale})
    with pytest.raises(CheckpointError, match="target/scale: its dtype is uint16, which T5X does not write"):
        mw.checkpoints.open_source(t5x.write(tmp_path / "new/checkpoint_1", bits))


@pytest.mark.parametrize("compressor", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [0, 1, -1])
def test_a_chunk_that_was_cut_off_is_refused(compressor, cut, written):
    directory = written(compressor={"id": compressor, "level": 1})
    chunk = directory / "target.decoder.wi.kernel/0.0"
    chunk.write_bytes(chunk.read_bytes()[:cut])
    with pytest.raises(DamagedError, match=r"target/decoder/wi/kernel: .*/0\.0 .*Copy it again"):
        restored(mw.checkpoints.open_source(directory))


def test_a_wrong_byte_in_a_chunk_is_found_by_gzip(written):
    chunk = written() / "target.decoder.wi.kernel/0.0"
    whole = chunk.read_bytes()
    for place in range(0, len(whole), 37):
        chunk.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        array = mw.checkpoints.open_source(chunk.parents[1]).arrays()["target/decoder/wi/kernel"]
        try:
            assert np.asarray(array).tobytes() == KERNEL.tobytes()  # a byte of the header that says nothing
        except DamagedError:
            continue


def test_what_t5x_writes_by_orbax_has_the_same_names(tmp_path):
    redco.write_tree(tmp_path / "model/checkpoint_9/state", tree.nested(ARRAYS))
    data = {"shared/embedding": KERNEL}  # in truth the state of an iterator of tf.data
    tensorflow.write(tmp_path / "model/checkpoint_9/dataset/process_0-of-1/train_ds", data)
    source = mw.checkpoints.open_source(tmp_path / "model")
    assert_same(restored(source), ARRAYS)
    assert source.step == 9


def test_arrays_whose_shapes_nothing_tells_are_refused_and_read_with_those_of_a_model(written):
    """As the first that Orbax wrote, where hidden files were not copied."""
    placeholder = lambda path, *_: f"PLACEHOLDER://{path.rstrip('/')}"
    step = written(spec=placeholder, compressor={"id": "zstd"})
    for hidden in step.rglob(".zarray"):
        hidden.unlink()
    with pytest.raises(CheckpointError, match=r"its \.zarray is missing, .* open_t5x\(path, like=tree\)"):
        mw.checkpoints.open_source(step)
    like = tree.nested({name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in ARRAYS.items()})
    assert_same(restored(mw.checkpoints.open_t5x(str(step), like=like)), ARRAYS)


@pytest.mark.parametrize(("by_t5x", "by_orbax"), [(7, 9), (9, 7)])
def test_of_a_run_that_went_over_to_orbax_or_back_the_newest_is_taken(by_t5x, by_orbax, tmp_path):
    t5x.write(tmp_path / f"checkpoint_{by_t5x}", {"target/w": KERNEL})
    redco.write_tree(tmp_path / f"checkpoint_{by_orbax}/state", {"target": {"w": KERNEL}})
    source = mw.checkpoints.open_source(tmp_path)
    assert (source.step, source.arrays().keys()) == (9, {"target/w"})
    assert source.format == ("T5X" if by_t5x == 9 else "Orbax")


def test_a_tree_that_was_cut_off_anywhere_is_refused(written):
    file = written(in_tree=ARRAYS) / "checkpoint"
    whole = file.read_bytes()
    for end in range(20, len(whole), 11):
        file.write_bytes(whole[:end])
        with pytest.raises(DamagedError, match="it is not msgpack as Flax writes it"):
            mw.checkpoints.open_source(file)


def test_a_tree_with_a_wrong_byte_is_refused_or_read_but_breaks_nothing(written):
    file = written() / "checkpoint"
    whole = file.read_bytes()
    for place in range(20, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            restored(mw.checkpoints.open_source(file))
        except CheckpointError:
            continue


def test_shapes_that_differ_between_tree_and_array_are_refused(written):
    directory = written()
    zarray = t5x.zarray(directory, "target/decoder/wi/kernel") | {"shape": [8, 12]}
    (directory / "target.decoder.wi.kernel/.zarray").write_text(json.dumps(zarray))
    with pytest.raises(DamagedError, match=r"shape \[8, 12\] in its .zarray, but \[12, 8\] in the tree"):
        mw.checkpoints.open_source(directory)


def test_shapes_that_differ_from_the_models_are_refused_of_every_leaf(written):
    source = mw.checkpoints.open_source(written(in_tree=("target/decoder/norm/scale",)))
    target = tree.nested({name: np.zeros((2, 2), x.dtype) for name, x in ARRAYS.items()})
    with pytest.raises(CheckpointError) as raised:
        mw.restore(source, target)
    assert all(re.search(rf"{name}\b.*2, ?2", str(raised.value)) for name in ARRAYS)


def test_all_is_loaded_without_a_model_in_another_dtype_but_for_integers(written):
    source = cast(mw.checkpoints.open_source(written()), [("target/.*|state/step", "bfloat16")])
    loaded = load(source)
    assert loaded["target"]["decoder"]["wi"]["kernel"].dtype == ml_dtypes.bfloat16
    assert loaded["state"]["step"] == 1_000_001
    assert loaded["state"]["param_states"]["decoder"]["wi"]["kernel"]["v_row"].dtype == np.float32
    assert np.array_equal(load_lazily(source)["target"]["gain"], loaded["target"]["gain"])


def test_a_model_takes_parameters_of_t5x_by_a_map_of_names(written, mesh):
    def init(key):
        return {"wi": jax.numpy.zeros((12, 8)), "norm": jax.numpy.zeros(8)}

    build = mw.engine.from_checkpoint(
        str(written()),
        assign=[("params/wi", "target/decoder/wi/kernel"), ("params/norm", "target/decoder/norm/scale")],
        casts=[("target/.*", "float32")],
    )
    given = build(mw.training.abstract_state(init, optax.sgd(0.1), mw.Layout(mesh)))
    assert np.asarray(given["params/wi"]).tolist() == KERNEL.tolist()
