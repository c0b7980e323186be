"""`verify`, `diff` and `convert` as a shell sees them: what is printed, and the exit code."""

import json
import re

import numpy as np
import pytest
from flax import serialization

from checkpoints.test_read import DATA_FILE, flip_a_bit
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
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


def test_verify_of_a_run_tells_of_each_checkpoint(run, capsys):
    assert main(["verify", str(run)]) == 0
    first, second, total = capsys.readouterr().out.splitlines()
    assert "step_00000001 is intact: 2 arrays in 2 files, " in first
    assert "step_00000002 is intact: " in second
    assert total == "2 intact, 0 damaged"


def test_verify_of_one_checkpoint_reads_no_other(run, capsys):
    flip_a_bit(step(run, 1) / DATA_FILE, 0)
    assert main(["verify", str(step(run, 2))]) == 0
    assert "1 intact, 0 damaged" in capsys.readouterr().out


def test_verify_names_the_damage_and_exits_with_3(run, capsys):
    flip_a_bit(step(run, 1) / DATA_FILE, 0)
    assert main(["verify", str(run)]) == 3
    out = capsys.readouterr().out
    assert f"{DATA_FILE}: the header of zarr.json, " in out
    assert "step_00000002 is intact" in out
    code, found = answer(capsys, "verify", run)
    assert (code, found["intact"]) == (3, False)
    assert [each["intact"] for each in found["checkpoints"]] == [False, True]
    assert found["checkpoints"][0]["damage"][0]["offset"] == 0


def test_verify_of_what_is_no_checkpoint_exits_with_3(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 3
    assert "is not a checkpoint" in capsys.readouterr().err


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


@pytest.mark.parametrize("to", ["safetensors", "npz", "seqax"])
def test_convert_into_another_format_and_back_changes_nothing(run, tmp_path, capsys, to):
    other = tmp_path / ("out.npz" if to == "npz" else "out")
    assert answer(capsys, "convert", run, other, "--to", to)[0] == 0
    code, found = answer(capsys, "diff", run, other)
    assert (code, found["equal"], found["b"].endswith(f" ({to})")) == (0, 2, True)
    assert answer(capsys, "convert", other, tmp_path / "again")[0] == 0
    assert answer(capsys, "diff", run, tmp_path / "again")[0] == 0


def test_inspect_shows_checkpoints_of_other_formats(run, tmp_path, capsys):
    main(["convert", str(run), str(tmp_path / "out"), "--to", "seqax", "--only", "params/.*"])
    capsys.readouterr()
    code, found = answer(capsys, "inspect", tmp_path / "out")
    assert (code, found["format"], found["step"], found["bytes"]) == (0, "seqax", 2, 32)
    assert found["arrays"]["params/w"] == {"shape": [8], "dtype": "float32", "bytes": 32}
    assert main(["inspect", str(tmp_path / "out")]) == 0
    assert re.search(r"format +seqax\n", capsys.readouterr().out)


def test_inspect_tells_of_bytes_that_lie_beside_arrays_too(tmp_path, capsys):
    held = {"w": np.ones(2, np.float32), "note": b"of May"}
    (tmp_path / "model.msgpack").write_bytes(serialization.msgpack_serialize(held))
    code, found = answer(capsys, "inspect", tmp_path)
    assert (code, found["extra"]) == (0, {"note": "b'of May'"})


def test_convert_to_where_the_step_is_exits_with_2(run, capsys):
    assert main(["convert", str(run), str(run / "checkpoints")]) == 2
    assert "step_00000002 exists already" in capsys.readouterr().err


def test_pin_keeps_a_step_and_inspect_lists_it(run, capsys):
    assert main(["pin", str(run), "1", "--note", "for the paper"]) == 0
    assert (step(run, 1) / "PINNED").read_text() == "for the paper\n"
    capsys.readouterr()
    code, found = answer(capsys, "inspect", run)
    assert (code, [each["pinned"] for each in found["checkpoints"]]) == (0, [True, False])
    assert main(["inspect", str(run / "checkpoints")]) == 0
    assert re.search(r"step 1 +[\d.]+ \w+  pinned\n  step 2 +[\d.]+ \w+\n$", capsys.readouterr().out)


def test_unpin_takes_it_back_once(run, capsys):
    main(["pin", str(run), "1"])
    assert main(["unpin", str(run), "1"]) == 0
    assert main(["unpin", str(run), "1"]) == 3
    assert "step_00000001 is not pinned" in capsys.readouterr().err


def test_a_step_that_is_not_there_cannot_be_pinned(run, capsys):
    assert main(["pin", str(run), "7"]) == 3
    assert "step_00000007 is not a complete checkpoint" in capsys.readouterr().err


def test_inspect_shows_the_newest_that_can_be_read_and_tells_of_damage(run, capsys):
    flip_a_bit(step(run, 2) / "manifest.json", 30)
    (run / "checkpoints" / "step_00000003.damaged-0123abcd").mkdir()
    assert main(["inspect", str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\nstep +1\n", out)
    assert out.endswith(
        "step 2              damaged\n  step_00000003.damaged-0123abcd, set aside as damaged\n"
    )


def test_a_run_whose_checkpoints_are_elsewhere_is_found_by_its_directory(run, tmp_path, capsys):
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "environment.json").write_text(json.dumps({"checkpoints": str(tmp_path / "elsewhere")}))
    code, found = answer(capsys, "verify", run)
    assert (code, len(found["checkpoints"])) == (0, 2)
    (run / "environment.json").write_text("{")
    assert main(["verify", str(run)]) == 3
    assert "environment.json, which says where the checkpoints are, is damaged" in capsys.readouterr().err
