"""Checkpoints in object stores that are no longer what was written: found, passed over, set aside."""

import numpy as np
import pytest

from base.storage.stores import objects
from meshwright.base._storage._path import location
from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._inspect import verify, verify_all
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import last
from meshwright.errors import CheckpointError, DamagedError

TARGET = {"x": np.zeros(1000, int)}


@pytest.fixture
def saved(run):
    """Return an address with checkpoints of steps 1 to 3, each full of its step."""
    with Checkpoints(run, keep=last(10)) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {"x": np.full(1000, step)})
    return run


def found_at(run, step, name):
    """Return the object of a step whose key contains `name`."""
    [key] = [key for key in objects(run) if key.startswith(f"step_{step:08d}/") and name in key]
    return location(f"{run}/{key}")


def harm(run, step, how):
    data = found_at(run, step, "data-")
    content = bytearray(data.read_bytes())
    match how:
        case "missing":
            data.unlink()
        case "truncated":
            data.put(bytes(content[:3000]))
        case "longer":
            data.put(bytes(content) + b"x")
        case "flipped":
            content[3000] ^= 1
            data.put(bytes(content))
        case "manifest":
            manifest = found_at(run, step, "manifest.json")
            manifest.put(manifest.read_bytes().replace(b'"step"', b'"stop"'))


def resume(run, keep=10):
    with Checkpoints(run, keep=last(keep)) as checkpoints:
        state = checkpoints.resume(TARGET, None, otherwise=pytest.fail)
    assert (state["x"] == checkpoints.resumed).all()
    return checkpoints


HARMS = {
    "missing": "is missing",
    "truncated": "has fewer than 9049 bytes",
    "longer": "has more than 9049 bytes",
    "flipped": "CRC-32",
}


@pytest.mark.parametrize("run", ["s3"], indirect=True)
@pytest.mark.parametrize("how", HARMS)
def test_damage_is_always_found_and_named(saved, how):
    harm(saved, 3, how)
    with pytest.raises(DamagedError, match=rf"data-00000-of-00001\.zarr\.zip.*{HARMS[how]}"):
        restore(open_source(saved), TARGET)
    [damage, *_] = verify(saved).damage
    assert damage.file.endswith("data-00000-of-00001.zarr.zip")


@pytest.mark.parametrize("run", ["s3"], indirect=True)
@pytest.mark.parametrize("how", [*HARMS, "manifest"])
def test_a_run_goes_on_from_the_newest_that_is_intact_and_sets_the_others_aside(saved, how):
    before = objects(saved)
    harm(saved, 3, how)
    [said] = resume(saved).passed_over
    assert "step 3 is damaged; continuing from step 2" in said
    assert "It is kept as step_00000003/manifest.json.damaged-" in said
    assert resume(saved).passed_over == ()
    assert [report.checkpoint[-1] for report in verify_all(saved)] == ["1", "2"]
    gone = set(before) - set(objects(saved))
    assert {key.rpartition("/")[2] for key in gone} - {"data-00000-of-00001.zarr.zip"} == {"manifest.json"}


def test_a_step_that_was_set_aside_is_saved_anew_and_what_was_kept_stays(saved):
    harm(saved, 3, "flipped")
    with Checkpoints(saved, keep=last(1)) as checkpoints:
        checkpoints.resume(TARGET, None, otherwise=pytest.fail)
        for step in (3, 4):
            checkpoints.save(step, {"x": np.full(1000, step)})
    resume(saved, keep=1)
    kept = [key for key in objects(saved) if not key.startswith("step_00000004/")]
    assert [key.rpartition("/")[2].partition("ed-")[0] for key in kept] == [
        "data-00000-of-00001.zarr.zip",
        "manifest.json.damag",
    ]


@pytest.mark.parametrize("run", ["s3"], indirect=True)
@pytest.mark.parametrize("how", ["missing", "longer", "manifest"])
def test_a_step_whose_checkpoint_is_plainly_damaged_is_saved_anew_without_a_resume(saved, how):
    harm(saved, 3, how)
    with Checkpoints(saved, keep=last(10)) as checkpoints:
        checkpoints.save(3, {"x": np.full(1000, 3)})
    assert resume(saved).resumed == 3


def test_a_manifest_that_is_called_back_makes_it_a_checkpoint_again(saved):
    content = found_at(saved, 3, "data-").read_bytes()
    path = found_at(saved, 3, "data-")
    harm(saved, 3, "truncated")
    resume(saved)
    path.put(content)
    aside = found_at(saved, 3, "manifest.json.damaged-")
    (aside.parent / "manifest.json").put(aside.read_bytes())
    assert not verify(f"{saved}/step_00000003").damage
    assert resume(saved).resumed == 3


def test_where_all_were_set_aside_the_error_says_so(run):
    with Checkpoints(run) as checkpoints:
        checkpoints.save(1, TARGET)
    path = found_at(run, 1, "manifest.json")
    (path.parent / "manifest.json.damaged-00000000").put(path.read_bytes())
    path.unlink()
    with pytest.raises(CheckpointError, match=r"only step_00000001/manifest\.json\.damaged-00000000, which"):
        open_source(run)
