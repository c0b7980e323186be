"""From which checkpoint a run goes on when not all is well."""

import logging

import numpy as np
import pytest

from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._choice import chosen_step
from meshwright.checkpoints._formats._inspect import verify, verify_all
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, DamagedError

TARGET = {"x": np.zeros(100, int)}


@pytest.fixture
def saved(tmp_path):
    """Return a directory with checkpoints of steps 1 to 3, each full of its step."""
    with Checkpoints(tmp_path, keep=last(10)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": np.full(100, step)})
    return tmp_path


def damage_data(directory, step):
    checkpoint = directory / f"step_{step:08d}"
    flip_a_bit(checkpoint / DATA_FILE, chunks_of(checkpoint, "x")[0][1])


def resume(directory, target=TARGET):
    with Checkpoints(directory, keep=last(10)) as checkpoints:
        state = checkpoints.resume(target, None, otherwise=pytest.fail)
    assert (state["x"] == checkpoints.resumed).all()
    return checkpoints


def names(directory):
    return sorted(path.name for path in directory.glob("step_*"))


def damage_manifest(directory, step):
    flip_a_bit(directory / f"step_{step:08d}" / "manifest.json", 30)


def lose_the_data(directory, step):
    (directory / f"step_{step:08d}" / DATA_FILE).unlink()


def truncate_the_data(directory, step):
    path = directory / f"step_{step:08d}" / DATA_FILE
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_manifest(directory, step):
    (directory / f"step_{step:08d}" / "manifest.json").unlink()


def lose_all_files(directory, step):
    for path in (directory / f"step_{step:08d}").iterdir():
        path.unlink()


def lose_what_a_link_leads_to(directory, step):
    path = directory / f"step_{step:08d}"
    path.rename(directory / f"elsewhere-{step}")
    path.symlink_to(directory / "nowhere")


def empty_the_manifest(directory, step):
    (directory / f"step_{step:08d}" / "manifest.json").write_bytes(b"")


@pytest.mark.parametrize(
    "harm",
    [
        damage_data,
        damage_manifest,
        lose_the_data,
        truncate_the_data,
        empty_the_manifest,
        lose_the_manifest,
        lose_all_files,
        lose_what_a_link_leads_to,
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_newest_intact_one(saved, harm):
    harm(saved, 3)
    assert resume(saved).resumed == 2


def test_several_damaged_ones_are_passed_over(saved):
    damage_data(saved, 3)
    damage_manifest(saved, 2)
    checkpoints = resume(saved)
    assert checkpoints.resumed == 1
    assert [said.partition(";")[0] for said in checkpoints.passed_over] == [
        "step 3 is damaged",
        "step 2 is damaged",
    ]


def test_a_fall_back_is_logged_as_an_error_that_says_what_and_where(saved, caplog):
    damage_data(saved, 3)
    [said] = resume(saved).passed_over
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.ERROR, said)]
    for part in (
        "step 3 is damaged; continuing from step 2",
        "cannot read x from",
        "kept as step_00000003.dam",
    ):
        assert part in said


def test_a_damaged_checkpoint_is_kept_under_a_telling_name(saved):
    damage_data(saved, 3)
    resume(saved)
    [aside] = saved.glob("step_00000003*")
    assert aside.name.startswith("step_00000003.damaged-")
    assert verify(aside).damage
    assert resume(saved).passed_over == ()


def test_after_a_fall_back_the_damaged_step_is_saved_anew(saved):
    damage_data(saved, 3)
    with Checkpoints(saved, keep=last(10)) as checkpoints:
        checkpoints.resume(TARGET, None, otherwise=pytest.fail)
        checkpoints.save(3, {"x": np.full(100, 3)})
    assert resume(saved).resumed == 3


@pytest.mark.parametrize("harm", [damage_manifest, lose_the_data, truncate_the_data, empty_the_manifest])
def test_a_step_whose_checkpoint_is_plainly_damaged_is_saved_anew_without_a_resume(saved, harm):
    harm(saved, 3)
    with Checkpoints(saved, keep=last(10)) as checkpoints:
        checkpoints.save(3, {"x": np.full(100, 3)})
    assert resume(saved).resumed == 3
    assert len(list(saved.glob("step_00000003.damaged-*"))) == 1


def test_without_the_right_to_save_a_damaged_checkpoint_is_left_where_it_is(saved):
    damage_data(saved, 3)
    checkpoints = Checkpoints(saved)
    checkpoints.resume(TARGET, None, otherwise=pytest.fail)
    assert checkpoints.resumed == 2
    assert names(saved) == ["step_00000001", "step_00000002", "step_00000003"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"y": TARGET["x"]}, "y: in the target, but not in the checkpoint"),
        ({"x": np.zeros(99, int)}, "x: shape"),
        ({"x": np.zeros((100, 1), int)}, "x: shape"),
        ({"x": np.zeros(100, np.float32)}, "x: dtype"),
    ],
)
def test_what_does_not_match_is_an_error_and_no_reason_to_fall_back(saved, target, said):
    with Checkpoints(saved) as checkpoints, pytest.raises(CheckpointError, match=said) as error:
        checkpoints.resume(target, None, otherwise=pytest.fail)
    assert not isinstance(error.value, DamagedError)
    assert len(names(saved)) == 3


def test_where_none_is_intact_nothing_is_begun_again_nor_moved(saved):
    for step in (1, 2, 3):
        damage_data(saved, step)
    with Checkpoints(saved) as checkpoints, pytest.raises(DamagedError, match="all checkpoints are damaged"):
        checkpoints.resume(TARGET, None, otherwise=pytest.fail)
    assert names(saved) == ["step_00000001", "step_00000002", "step_00000003"]


@pytest.mark.parametrize("harm", [lose_the_manifest, lose_all_files, lose_what_a_link_leads_to])
def test_a_run_whose_manifests_are_all_lost_does_not_begin_again(saved, harm):
    for step in (1, 2, 3):
        harm(saved, step)
    with (
        Checkpoints(saved) as checkpoints,
        pytest.raises(DamagedError, match=r"step 2: .*: it is missing"),
    ):
        checkpoints.resume(TARGET, None, otherwise=pytest.fail)


@pytest.mark.parametrize("harm", [lose_the_manifest, lose_all_files])
def test_readers_name_a_step_without_a_manifest_and_read_the_newest_with_one(saved, harm, caplog):
    harm(saved, 3)
    assert [bool(report.damage) for report in verify_all(saved)] == [False, False, True]
    assert Checkpoints(saved).latest() == open_source(saved).step == chosen_step(str(saved), "newest") == 2
    [record] = caplog.records
    assert f"step_00000003 in {saved} left out, as there is no manifest.json" in record.getMessage()


def test_readers_of_a_run_whose_manifests_are_all_lost_name_the_damage(saved):
    for step in (1, 2, 3):
        lose_the_manifest(saved, step)
    with pytest.raises(DamagedError, match="is damaged: it is missing"):
        open_source(saved)


def test_checkpoints_of_another_program_with_such_names_are_none_of_a_run(tmp_path):
    (tmp_path / "step_00000007").mkdir()
    (tmp_path / "step_00000007" / "index").touch()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume(TARGET, None, otherwise=lambda: "fresh") == "fresh"


def test_the_newest_intact_step_is_found_among_all_sorts_of_garbage(saved):
    for name in ("step_00000004", "step_9", "step_0000000005", "step_00000006.tmp-0123abcd", "step_", "logs"):
        (saved / name).mkdir()
    for name in (
        "step_00000007",
        "step_00000008.tmp-0123abcd",
        "step_00000009.damaged-0123abcd",
        "notes.txt",
    ):
        (saved / name).write_text("not a checkpoint")
    for name in ("step_0000000005", "step_9", "step_00000006.tmp-0123abcd", "step_٠٠٠٠٠٠١٠"):
        (saved / name).mkdir(exist_ok=True)
        (saved / name / "manifest.json").write_bytes((saved / "step_00000003/manifest.json").read_bytes())
    (saved / "step_00000010" / "manifest.json").mkdir(parents=True)
    (saved / "step_00000011").mkdir()
    (saved / "step_00000011" / "manifest.json").write_text('{"name": "a web app"}')
    (saved / "step_00000012").symlink_to("nowhere")
    assert resume(saved).resumed == 3
    assert open_source(saved).step == 3
    for step in (4, 7, 10, 11, 12):
        with Checkpoints(saved, keep=last(20)) as checkpoints:
            checkpoints.save(step, {"x": np.full(100, step)})
        assert resume(saved).resumed == step
