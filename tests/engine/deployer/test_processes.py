"""Two real processes of two devices each share a workdir, and then have disks of their own."""

import json
import re
from pathlib import Path

import pytest

from meshwright.launch._internal import launch_local

PROGRAM = Path(__file__).parent / "two.py"


@pytest.fixture(scope="module")
def run(python, tmp_path_factory):
    """Return where both ran, and what each said."""
    where = tmp_path_factory.mktemp("two")
    assert launch_local([*python, str(PROGRAM), str(where)], 2) == 0
    return where, [json.loads((where / f"{number}.json").read_text()) for number in range(2)]


def test_each_reads_its_share_of_a_batch_or_all_if_they_hold_one_model_together(run):
    for said in run[1]:
        assert said["sizes"] == [[3, 6], [3, 3]]
    collated = [said["collated"] for said in run[1]]
    assert collated == [[[0, 1, 2], [6, 7, 8], [12, 13, 14]], [[3, 4, 5], [9, 10, 11], [15, 16, 17]]]


def test_a_step_sees_the_global_batch_and_one_key(run):
    first, second = run[1]
    assert first["sums"] == second["sums"] == [15, 51, 87]
    assert first["rng"] == second["rng"]


def test_what_was_saved_is_loaded_right_after_by_all(run):
    for step in range(3):
        assert [said[f"loaded {step}"][0] for said in run[1]] == [step, step]
        assert [sorted(set(said[f"loaded {step}"][1])) for said in run[1]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_metrics_are_written_once_and_each_has_its_log(run):
    shared = run[0] / "shared"
    assert len((shared / "metrics.jsonl").read_text().splitlines()) == 1
    assert {path.name for path in shared.glob("log*.txt")} == {"log.txt", "log-1.txt"}


def test_disks_of_their_own_are_told_of_and_take_no_checkpoint_anywhere(run):
    where, said = run
    for number in range(2):
        log = "log-1.txt" if number else "log.txt"
        assert (
            "is not the same directory on all processes" in (where / f"disk-{number}/run" / log).read_text()
        )
        *apart, missing = said[number]["refused"]
        assert len(apart) == 4
        assert all(re.match("UsageError: .* needs one directory for all processes", each) for each in apart)
        assert missing.startswith("CheckpointError")
