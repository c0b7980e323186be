import json
import logging
import shutil

import jax
import numpy as np
import pytest

from checkpoints.formats.readers import redco
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, DamagedError


@pytest.fixture
def copied(golden, tmp_path):
    """Return a function that copies a golden checkpoint, to be damaged."""
    return lambda name: shutil.copytree(golden / name, tmp_path / "copy")


def test_a_manager_is_opened_at_its_newest_step(golden):
    source = open_source(golden / "0.12.8/manager")
    assert (source.format, source.step, source.extra) == ("Orbax", 10, {"data": {"position": 10}})
    assert source.read("state/step", ()) == 10
    assert "StandardCheckpointHandler" in source.writer["item_handlers"]["params"]


def test_the_leaves_of_several_items_are_called_by_their_items(golden):
    names = open_source(golden / "0.12.8/manager/9").arrays()
    assert list(names) == ["params/layers/0", "params/layers/1", "params/w", "state/step"]
    assert list(open_source(golden / "0.12.8/manager/9/params").arrays()) == ["layers/0", "layers/1", "w"]


def test_scores_that_were_saved_with_a_step_are_told(copied):
    step = copied("0.12.8/manager") / "10"
    (step / "metrics").mkdir()
    (step / "metrics/metrics").write_text('{"loss": 0.5}')
    assert open_source(step).extra == {"data": {"position": 10}, "metrics": {"loss": 0.5}}


def test_typed_keys_come_back_as_keys(golden):
    target = {"rng": jax.random.key(0), "x": np.zeros(2, np.float32)}
    restored = restore(open_source(golden / "0.12.8/manager_of_one"), target)
    assert jax.random.key_data(restored["rng"]).tolist() == [0, 3]


@pytest.mark.parametrize("suffix", [".orbax-checkpoint-tmp", ".orbax-checkpoint-tmp-1700000000"])
def test_steps_that_are_being_written_are_passed_over_and_told(copied, suffix, caplog):
    manager = copied("0.12.8/manager")
    unfinished = (manager / "10").rename(manager / f"10{suffix}")
    with caplog.at_level(logging.WARNING, "meshwright"):
        assert open_source(manager).step == 9
    assert f"{unfinished} is not complete; the newest that is: 9" in caplog.text
    with pytest.raises(CheckpointError, match=rf"{suffix} is not complete: its save is still running"):
        open_source(unfinished)
    with pytest.raises(CheckpointError, match=rf"{suffix}/params is not complete"):
        open_source(unfinished / "params")
    shutil.rmtree(manager / "9")
    with pytest.raises(CheckpointError, match=rf"has no complete checkpoint, only the unfinished 10{suffix}"):
        open_source(manager)


def test_a_step_in_a_store_without_its_mark_is_not_complete(copied):
    step = copied("0.12.8/manager") / "10"
    (step / "commit_success.txt").unlink()
    said = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    (step / "_CHECKPOINT_METADATA").write_text(json.dumps(said | {"commit_timestamp_nsecs": None}))
    assert open_source(step.parent).step == 9


@pytest.mark.parametrize("name", ["0.12.8/tree_ocdbt", "0.12.8/tree_ocdbt_zarr3", "0.3.5/tree_ocdbt"])
def test_a_missing_file_of_the_database_is_an_error(copied, name):
    directory = copied(name)
    for file in directory.rglob("d/*"):
        file.unlink()
    with pytest.raises(DamagedError, match=r"is missing|not found|NOT_FOUND"):
        np.asarray(open_source(directory).arrays()["params/w"])


@pytest.mark.parametrize("name", ["0.12.8/tree_ocdbt", "0.5.20/tree_ocdbt", "0.12.8/tree_zarr3"])
def test_files_that_were_cut_off_are_an_error(copied, name):
    directory = copied(name)
    for file in [*directory.rglob("d/*"), *directory.glob("params.w/c/0/0")]:
        file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(DamagedError, match="cannot read"):
        np.asarray(open_source(directory).arrays()["params/w"])


def test_a_database_whose_bits_flipped_is_damaged_and_the_file_is_named(copied):
    (file,) = (directory := copied("0.12.8/tree_ocdbt")).glob("d/*")
    file.write_bytes(bytes([each ^ 1 for each in file.read_bytes()]))
    with pytest.raises(DamagedError, match=rf"cannot read .*{file.name}"):
        open_source(directory)


@pytest.mark.parametrize(("name", "chunk"), [("tree", "params.w/0.0"), ("tree_zarr3", "params.w/c/0/0")])
def test_a_missing_chunk_is_an_error_and_not_zeros(copied, name, chunk):
    directory = copied(f"0.12.8/{name}")
    (directory / chunk).unlink()
    with pytest.raises(DamagedError, match=r"cannot read params/w in .* is missing"):
        np.asarray(open_source(directory).arrays()["params/w"])


def test_a_missing_array_is_named(copied):
    directory = copied("0.12.8/tree")
    shutil.rmtree(directory / "params.w")
    with pytest.raises(DamagedError, match="cannot read params/w in"):
        open_source(directory)


@pytest.mark.parametrize("content", ["{", '{"tree_metadata": {"a": 1}}', "[]"])
def test_a_damaged_description_is_an_error(copied, content):
    directory = copied("0.12.8/tree")
    (directory / "_METADATA").write_text(content)
    with pytest.raises(DamagedError, match=r"_METADATA (is damaged|does not describe a tree)"):
        open_source(directory)


@pytest.mark.parametrize("name", ["tree", "tree_ocdbt", "manager/10/params", "version_1"])
def test_a_tree_without_its_description_is_refused(copied, name):
    directory = copied(f"0.12.8/{name}")
    next(directory.rglob("_METADATA")).unlink()
    with pytest.raises(DamagedError, match=r"has no _METADATA, which lists the arrays"):
        open_source(directory)


@pytest.mark.parametrize("file", ["_CHECKPOINT_METADATA", "params/array_metadatas/process_0"])
@pytest.mark.parametrize("content", ["{", "[]", '{"array_metadatas": [1], "item_handlers": 3}'])
def test_what_describes_a_step_is_a_dictionary_of_such(copied, file, content):
    step = copied("0.12.8/manager/10")
    (step / file).write_text(content)
    with pytest.raises(DamagedError, match=rf"{file} (is damaged|does not describe)"):
        open_source(step)


def test_a_missing_item_is_named(copied):
    step = copied("0.12.8/manager/10")
    shutil.rmtree(step / "params")
    with pytest.raises(DamagedError, match=r"has no params, which its _CHECKPOINT_METADATA lists"):
        open_source(step)
    assert open_source(step / "state").read("step", ()) == 10


def test_an_item_that_is_being_written_is_not_opened(copied):
    step = copied("0.12.8/manager/10")
    (step / "params").rename(step / "params.orbax-checkpoint-tmp-123")
    with pytest.raises(CheckpointError, match=r"copy is not complete:"):
        open_source(step)


def test_what_processes_wrote_and_nobody_joined_is_refused(copied):
    directory = copied("0.12.8/tree_ocdbt")
    (directory / "manifest.ocdbt").unlink()
    with pytest.raises(
        DamagedError, match=r"has no manifest\.ocdbt, which merges the files of all processes"
    ):
        open_source(directory)


def test_items_that_are_left_out_are_told(copied, caplog):
    step = copied("0.12.8/manager/10")
    said = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    said["item_handlers"] |= {"rng": "orbax.checkpoint.JaxRandomKeyCheckpointHandler"}
    (step / "_CHECKPOINT_METADATA").write_text(json.dumps(said))
    (step / "rng").mkdir()
    with caplog.at_level(logging.WARNING, "meshwright"):
        open_source(step)
    assert caplog.messages == [f"{step}: items that only their own handlers can read are left out: rng"]


def test_a_step_of_json_alone_is_opened(copied):
    step = copied("0.12.8/manager/10")
    said = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    said["item_handlers"] = {"data": said["item_handlers"]["data"]}
    (step / "_CHECKPOINT_METADATA").write_text(json.dumps(said))
    for item in ("params", "state"):
        shutil.rmtree(step / item)
    assert (open_source(step).arrays(), open_source(step).extra) == ({}, {"data": {"position": 10}})


def test_a_tree_may_be_one_array_and_keys_may_be_blank(tmp_path):
    for name, held in {"array": np.arange(3), "blank": {"": np.arange(3), "x": np.zeros(1)}}.items():
        redco.write_tree(tmp_path / name, held)
        assert np.asarray(open_source(tmp_path / name).arrays()[""]).tolist() == [0, 1, 2]


def test_nothing_is_unpickled(copied):
    directory = copied("0.12.8/tree")
    (directory / "params_shape.pkl").write_bytes(b"cos\nabort\n(tR.")
    assert open_source(directory).format == "Orbax"
