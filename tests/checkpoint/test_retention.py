import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.checkpoint import Checkpoints, last
from meshwright.errors import MeshwrightError, UsageError


def saved_steps(directory):
    return sorted(int(path.name.removeprefix("step_")) for path in directory.glob("step_*"))


def save_all(checkpoints, scores):
    for step, loss in scores.items():
        checkpoints.save(step, {"x": step}, {"scores": {"loss": loss}})


@given(st.dictionaries(st.integers(0, 2**40), st.none(), min_size=1), st.integers(1, 5))
def test_last_keeps_the_newest(scores, num_checkpoints):
    assert last(num_checkpoints)(scores) == set(sorted(scores)[-num_checkpoints:])


def test_last_keeps_at_least_one():
    with pytest.raises(UsageError, match=r"last\(0\)"):
        last(0)


def test_two_are_kept_unless_said_otherwise(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        save_all(checkpoints, dict.fromkeys([9, 10, 11, 100], 0.0))
    assert saved_steps(tmp_path) == [11, 100]


def test_a_policy_sees_the_scores_that_were_saved_also_by_earlier_runs(tmp_path):
    def best(scores):
        return {min(scores, key=lambda step: scores[step]["loss"])}

    for losses in ({1: 0.5, 2: 0.1}, {3: 0.4, 4: 0.3}):
        with Checkpoints(tmp_path, keep=best) as checkpoints:
            save_all(checkpoints, losses)
    assert saved_steps(tmp_path) == [2, 4]


def test_the_newest_stays_whatever_the_policy_says(tmp_path):
    with Checkpoints(tmp_path, keep=lambda scores: set()) as checkpoints:
        save_all(checkpoints, {1: 0.0, 2: 0.0})
    assert saved_steps(tmp_path) == [2]


def test_what_cannot_be_read_is_not_removed(tmp_path):
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {1: 0.0})
    (tmp_path / "step_00000001" / "manifest.json").write_text("{")
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {2: 0.0, 3: 0.0})
    assert saved_steps(tmp_path) == [1, 3]


def test_a_removal_that_is_cut_short_leaves_no_half_a_checkpoint(tmp_path, monkeypatch):
    def cut_short(path, **_):
        if path.name.startswith("step_00000001"):
            (path / "data-00000-of-00001.zarr.zip").unlink()
            raise OSError("killed here")

    monkeypatch.setattr(shutil, "rmtree", cut_short)
    with Checkpoints(tmp_path, keep=last(1)) as checkpoints:
        save_all(checkpoints, {1: 0.0, 2: 0.0})
        with pytest.raises(MeshwrightError, match=r"step 2 is saved, but older .* killed here"):
            checkpoints.wait()
    assert not (tmp_path / "step_00000001").exists()


def test_a_policy_that_fails_costs_no_checkpoint(tmp_path):
    with Checkpoints(tmp_path, keep=lambda scores: scores["no such step"]) as checkpoints:
        save_all(checkpoints, {1: 0.0})
        with pytest.raises(
            MeshwrightError, match="step 1 is saved, but older checkpoints could not be removed"
        ):
            checkpoints.wait()
        assert checkpoints.latest() == 1
