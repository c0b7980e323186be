import json
import logging
import os
from pathlib import Path

import jax
import numpy as np
import pytest
import zarr

from checkpoints.formats.readers import written
from meshwright.base import _tree as tree
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._lazy import LazyArray
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._arrays._source import as_source
from meshwright.checkpoints._formats._export_seqax import export_seqax
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._formats.readers import _tensorstore
from meshwright.errors import CheckpointError, DamagedError, MeshwrightError


@pytest.fixture
def run(tmp_path):
    return written.seqax(tmp_path)


@pytest.mark.parametrize("name", [".zattrs", "['params']['w']/.zarray", "['params']['w']/0.0"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_file_that_is_a_pipe_a_device_or_a_folder_is_an_error(run, name, make):
    path = run / "0000000007" / name
    path.unlink()
    make(path)
    with pytest.raises(
        (OSError, MeshwrightError), match=name.rpartition("/")[2].replace("0.0", r"0.0|\\{0, 0\\}")
    ):
        np.asarray(open_source(run / "0000000007").arrays()["params/w"])


def test_the_newest_step_is_chosen_by_number_among_whatever_lies_there(run):
    (run / "0000000007").rename(run / "7")
    written.seqax(run, {"x": np.zeros(2)})
    (run / "0000000007").rename(run / "0000000010")
    for other in ("plugins", "0000000011_tmp"):
        (run / other).mkdir()
    (run / "step.svg").touch()
    assert (open_source(run).step, open_source(run / "7").step) == (10, 7)


def test_a_step_that_is_not_committed_is_passed_over_and_said(run, caplog):
    zarr.open_group(run / "0000000009", mode="w", zarr_format=2).create_array(
        "x", shape=(1,), dtype=np.float32
    )
    with caplog.at_level(logging.WARNING, "meshwright"):
        assert open_source(run).step == 7
    assert "0000000009 is not complete; the newest that is: 0000000007" in caplog.text
    with pytest.raises(
        CheckpointError, match=r"0000000009 is not complete: its .zattrs has no write_completed"
    ):
        open_source(run / "0000000009")


def test_a_missing_chunk_is_an_error_and_not_zeros(run):
    (run / "0000000007" / "['params']['w']" / "1.0").unlink()
    w = open_source(run).arrays()["params/w"]
    assert w.read((slice(0, 8), slice(None))).shape == (8, 24)
    with pytest.raises(DamagedError, match=r"cannot read params/w in .*chunk \{1, 0\}.* is missing"):
        w.read((slice(8, 9), slice(0, 2)))


def test_a_chunk_that_another_writer_left_out_has_the_fill_value(run):
    file = run / "0000000007" / "['params']['w']" / ".zarray"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fill_value": 2.5}))
    (file.parent / "1.0").unlink()
    w = np.asarray(open_source(run).arrays()["params/w"])
    expected = written.ARRAYS["params/w"].copy()
    expected[8:, :12] = 2.5
    assert np.array_equal(w, expected)
    assert np.array_equal(w, zarr.open_group(run / "0000000007", mode="r")["['params']['w']"][...])


def test_a_chunk_that_was_cut_off_is_an_error(run):
    chunk = run / "0000000007" / "['params']['b']" / "0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    with pytest.raises(DamagedError, match=r"cannot read params/b in .*0000000007"):
        np.asarray(open_source(run).arrays()["params/b"])


def test_metadata_that_is_no_metadata_is_an_error(run):
    (run / "0000000007" / "['step']" / ".zarray").write_text("{")
    with pytest.raises(DamagedError, match=r"cannot read step in .*0000000007"):
        open_source(run)


def test_an_array_without_metadata_is_not_left_out(run):
    (run / "0000000007" / "['params']['b']" / ".zarray").unlink()
    with pytest.raises(
        DamagedError, match=r"0000000007 has chunks, but no \.zarray, for \['params'\]\['b'\]"
    ):
        open_source(run)


def test_a_group_that_lost_its_hidden_file_is_refused(run):
    (run / "0000000007" / ".zgroup").unlink()
    with pytest.raises(
        DamagedError, match=r"0000000007 has no \.zgroup\. Copy it again, with its hidden files"
    ):
        open_source(run)


def test_chunks_may_be_files_in_directories(tmp_path):
    group = zarr.open_group(tmp_path / "0000000001", mode="w", zarr_format=2)
    separator = {"name": "v2", "separator": "/"}
    made = group.create_array(
        "['w']", shape=(4, 2), chunks=(2, 1), dtype=np.float64, chunk_key_encoding=separator
    )
    made[...] = np.arange(8.0).reshape(4, 2) + 1
    group.attrs["write_completed"] = True
    assert (tmp_path / "0000000001" / "['w']" / "1" / "0").exists()
    assert np.asarray(open_source(tmp_path).arrays()["w"]).ravel().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_bucket_may_be_a_step_itself(run):
    step = run / "0000000007"
    for file in filter(Path.is_file, step.rglob("*")):
        location(f"memory://seqax-step/{file.relative_to(step)}").put(file.read_bytes())
    source = open_source("memory://seqax-step")
    assert sorted(source.arrays()) == sorted(written.ARRAYS)


def test_reading_writes_nothing(run):
    before = sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*"))
    restore(open_source(run), tree.nested(written.ARRAYS))
    assert sorted((path, path.stat().st_mtime_ns) for path in run.rglob("*")) == before


class Node(list):
    """A node whose children have names, as those of a dataclass."""


jax.tree_util.register_pytree_with_keys(
    Node,
    lambda node: ([(jax.tree_util.GetAttrKey(f"x{number}"), x) for number, x in enumerate(node)], None),
    lambda _, children: Node(children),
)


def test_every_kind_of_key_is_ours_again(tmp_path):
    state = {
        "it's": [np.zeros(1), Node([np.ones(1)])],
        "numbers": {3: np.ones(2)},
        "50%": np.zeros(2),
        'say "a.b"': np.ones(3),
    }
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    group = zarr.open_group(tmp_path / "0000000001", mode="w", zarr_format=2)
    for path, leaf in paths:
        written.put_zarr(group, jax.tree_util.keystr(path), leaf)
    group.attrs["write_completed"] = True
    assert set(open_source(tmp_path).arrays()) == set(tree.leaf_names(state))
    restored = restore(open_source(tmp_path), state)
    assert jax.tree.all(jax.tree.map(np.array_equal, restored, state))


def test_two_arrays_that_have_one_name_with_us_are_refused(tmp_path):
    group = zarr.open_group(tmp_path / "0000000007", mode="w", zarr_format=2)
    for name in ("['w'][0]", ".w[0]"):
        written.put_zarr(group, name, np.arange(3.0))
    group.attrs["write_completed"] = True
    with pytest.raises(CheckpointError, match=r"two arrays named w/0: \.w\[0\] and \['w'\]\[0\]"):
        open_source(tmp_path)


def test_names_without_separators_are_found_by_what_is_wanted(tmp_path):
    group = zarr.open_group(tmp_path / "0000000001", mode="w", zarr_format=2)
    for name in ("weightsembed", "weightslayers[0]w_q", "adam_muembed"):
        written.put_zarr(group, name, np.arange(4.0))
    group.attrs["write_completed"] = True
    layers = {"embed": np.zeros(4), "layers": [{"w_q": np.zeros(4)}]}
    restored = restore(open_source(tmp_path), {"weights": layers, "adam_mu": {"embed": np.zeros(4)}})
    assert restored["weights"]["layers"][0]["w_q"].tolist() == [0, 1, 2, 3]


def test_a_wanted_name_that_may_be_either_of_two_is_not_guessed(tmp_path):
    group = zarr.open_group(tmp_path / "0000000001", mode="w", zarr_format=2)
    for name in ("['a']['bc']", "['ab']['c']"):
        written.put_zarr(group, name, np.arange(4.0))
    group.attrs["write_completed"] = True
    with pytest.raises(CheckpointError, match="abc"):
        restore(open_source(tmp_path), {"abc": np.zeros(4)}, ignore="a.*")


def test_two_wanted_names_that_are_one_there_are_refused(tmp_path):
    group = zarr.open_group(tmp_path / "0000000001", mode="w", zarr_format=2)
    written.put_zarr(group, "abc", np.arange(4.0))
    group.attrs["write_completed"] = True
    with pytest.raises(CheckpointError, match="apart: its format stores both as 'abc'"):
        restore(open_source(tmp_path), {"a": {"bc": np.zeros(4)}, "ab": {"c": np.zeros(4)}})


def test_a_directory_of_tokens_is_no_checkpoint(tmp_path):
    group = zarr.open_group(tmp_path, mode="w", zarr_format=2)
    group.create_group("train").create_array("encoded_tokens", shape=(4,), dtype=np.uint32)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        open_source(tmp_path)


@pytest.mark.others
def test_the_newest_step_of_a_real_run_is_opened(real_checkpoints):
    assert open_source(real_checkpoints / "seqax/train_tiny").step == 8


def test_a_part_of_many_chunks_is_read_some_at_a_time_and_is_the_same(tmp_path, monkeypatch):
    whole = np.arange(5 * 6 * 4, dtype=np.float32).reshape(5, 6, 4)
    chunks = LazyArray(whole.shape, whole.dtype, lambda index: whole[index], stored_chunks=(2, 4, 3))
    export_seqax(as_source({"w": chunks}, "x"), tmp_path, step=1)
    monkeypatch.setattr(_tensorstore, "_IN_FLIGHT_NBYTES", 2 * 24 * 4)
    for part in (np.s_[:, :, :], np.s_[1:5, 3:6, 2:3], np.s_[0:1, :, :], np.s_[2:2, :, :]):
        np.testing.assert_array_equal(open_source(tmp_path).read("w", part), whole[part])
