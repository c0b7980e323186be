"""`verify`, `diff` and `convert` as a shell sees them: what is printed, and the exit code."""

import json

import numpy as np
import pytest

from checkpoint.test_read import DATA_FILE, flip_a_bit
from meshwright.checkpoint import Checkpoints, open_source
from meshwright.cli import main


@pytest.fixture
def run(tmp_path):
    """Return a run directory with checkpoints of steps 1 and 2."""
    with Checkpoints(tmp_path / "run" / "checkpoints") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"params": {"w": np.full(8, step, np.float32)}, "same": 0})
    (tmp_path / "run" / "experiment.txt").touch()
    return tmp_path / "run"


def step(run, number):
    return run / "checkpoints" / f"step_{number:08d}"


def answer(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_verify_says_that_a_runs_newest_checkpoint_is_intact(run, capsys):
    assert main(["verify", str(run)]) == 0
    assert "step_00000002 is intact: 2 arrays in 2 files" in capsys.readouterr().out


def test_verify_names_the_damage_and_exits_with_3(run, capsys):
    flip_a_bit(step(run, 2) / DATA_FILE, 0)
    assert main(["verify", str(run)]) == 3
    assert f"{DATA_FILE}: the header of zarr.json, " in capsys.readouterr().out
    code, found = answer(capsys, "verify", run)
    assert (code, found["intact"], found["damage"][0]["offset"]) == (3, False, 0)


def test_verify_of_what_is_no_checkpoint_exits_with_3(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 3
    assert "is no checkpoint" in capsys.readouterr().err


def test_diff_of_equals_exits_with_0(run, capsys):
    code, found = answer(capsys, "diff", run, step(run, 2))
    assert (code, found["equal"], found["different"]) == (0, 2, {})


def test_diff_tells_the_largest_difference_and_exits_with_1(run, capsys):
    assert main(["diff", str(step(run, 1)), str(run)]) == 1
    out = capsys.readouterr().out
    assert "params/w: float32 8: 8 of 8 differ, by 1 at most" in out
    assert "1 arrays are equal, 1 are not" in out
    code, found = answer(capsys, "diff", step(run, 1), run)
    assert (code, found["different"]["params/w"]["largest"]) == (1, 1.0)


def test_diff_of_the_damaged_exits_with_3(run, capsys):
    flip_a_bit(step(run, 2) / "manifest.json", 30)
    assert main(["diff", str(step(run, 1)), str(run)]) == 3
    assert "is damaged" in capsys.readouterr().err


def test_convert_writes_a_part_in_another_dtype(run, tmp_path, capsys):
    words = ("convert", run, tmp_path / "out", "--dtype", "bfloat16", "--only", "params/.*")
    code, found = answer(capsys, *words)
    assert (code, found["checkpoint"]) == (0, str(tmp_path / "out" / "step_00000002"))
    arrays = open_source(tmp_path / "out").arrays()
    assert {name: array.dtype.name for name, array in arrays.items()} == {"params/w": "bfloat16"}


def test_convert_to_where_the_step_is_exits_with_2(run, capsys):
    assert main(["convert", str(run), str(run / "checkpoints")]) == 2
    assert "step_00000002 is there already" in capsys.readouterr().err
