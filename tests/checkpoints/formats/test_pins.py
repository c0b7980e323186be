import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import is_pinned, pin, unpin
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError


def test_a_pin_is_a_file_that_says_why(save):
    path = save({"x": 1})
    assert not is_pinned(path)
    pin(path, "the one in the paper")
    assert is_pinned(str(path))
    assert (path / "PINNED").read_text() == "the one in the paper\n"


def test_a_pin_is_on_the_disk_when_pin_returns(save, monkeypatch):
    path, synced = save({"x": 1}), []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
    pin(path)
    assert synced == [path / "PINNED", path, path.parent]


def test_a_pin_that_comes_while_the_checkpoint_is_removed_is_refused(save, monkeypatch):
    path = save({"x": 1})
    monkeypatch.setattr(os, "fsync", lambda _: path.rename(f"{path}.tmp-01234567"))  # the mark is written
    with pytest.raises(CheckpointError, match=r"cannot pin .*: it is not a complete checkpoint"):
        pin(path)


def test_unpinning_twice_is_no_error(save):
    path = save({"x": 1})
    pin(path)
    unpin(path)
    unpin(path)
    assert not is_pinned(path)


def test_a_file_made_by_hand_is_a_pin(save):
    path = save({"x": 1})
    (path / "PINNED").touch()
    assert is_pinned(path)


@pytest.mark.parametrize("what", ["nothing", "file", "directory"])
def test_what_is_no_checkpoint_cannot_be_pinned_and_is_not(tmp_path, what):
    path = tmp_path / what
    if what == "file":
        path.touch()
    elif what == "directory":
        path.mkdir()
    with pytest.raises(CheckpointError, match=f"{what}: it is not a complete"):
        pin(path)
    assert not is_pinned(path)


def test_a_pinned_checkpoint_is_restored_like_any_other(save):
    path = save({"x": np.arange(3)}, step=5)
    pin(path)
    assert open_source(path).read("x", (slice(None),)).tolist() == [0, 1, 2]
    assert open_source(path.parent).step == 5


def test_a_checkpoint_that_is_pinned_while_it_is_being_removed_comes_back(tmp_path, monkeypatch):
    rename = Path.rename

    def pin_just_before(path, target):
        if path.name == "step_00000001":
            pin(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", pin_just_before)
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        checkpoints.save(1, {"x": 1})
        checkpoints.save(2, {"x": 2})
    assert sorted(path.name for path in tmp_path.glob("step_*")) == ["step_00000001", "step_00000002"]


def test_half_a_checkpoint_is_not_brought_back_by_a_mark_that_came_too_late(tmp_path, monkeypatch):
    def be_killed(path, **_):
        if path.name.startswith("step_00000001"):
            (path / "data-00000-of-00001.zarr.zip").unlink()
            (path / "PINNED").touch()
            raise OSError("killed here")

    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        checkpoints.save(1, {"x": 1})
        checkpoints.wait()
        monkeypatch.setattr(shutil, "rmtree", be_killed)
        checkpoints.save(2, {"x": 2})
        checkpoints.wait()
    assert [*tmp_path.glob("step_00000001*")]
    monkeypatch.undo()
    with Checkpoints(tmp_path):
        assert [path.name for path in tmp_path.glob("step_*")] == ["step_00000002"]


def test_a_pinned_checkpoint_is_not_away_for_a_moment(tmp_path, monkeypatch):
    rename, renamed = Path.rename, []
    monkeypatch.setattr(Path, "rename", lambda path, to: renamed.append(path.name) or rename(path, to))
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        checkpoints.save(1, {"x": 1})
        checkpoints.wait()
        pin(tmp_path / "step_00000001")
        checkpoints.save(2, {"x": 2})
    assert "step_00000001" not in renamed
