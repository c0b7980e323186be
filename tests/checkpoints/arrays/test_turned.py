"""Two real processes restore what was saved in chunks of rows, split along the columns."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from checkpoints.test_read import DATA_FILE, chunks_of, flip_a_bit
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.launch._internal import launch_local

PROGRAM = Path(__file__).parent / "turned.py"
SHAPE = (2048, 1024)
NBYTES = int(np.prod(SHAPE)) * 4
SLACK = 1 << 17  # what is read beside the data: the manifest, say


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(python, tmp_path_factory):
    """Return what each of two processes read and heard."""
    where = tmp_path_factory.mktemp("turned")
    by_rows = jax.NamedSharding(mw.make_mesh("data=8"), jax.P("data"))
    array = jax.device_put(np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE), by_rows)
    with Checkpoints(where / "two") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, dict.fromkeys(("turned", "same", "whole"), array))
    first, second = sorted((where / "two").glob("step_*"))
    shutil.copytree(first, where / "whole")
    flip_a_bit(second / DATA_FILE, chunks_of(second, "turned")[-1][1])  # which one process reads
    shutil.copytree(second, where / "damaged")
    assert launch_local([*python, str(PROGRAM), str(where), "2"], 2, grace_seconds=20) == 0
    return [json.loads((where / f"{number}.json").read_text()) for number in (0, 1)]


def test_what_is_wanted_turned_is_read_once_by_all_together(said):
    assert NBYTES <= sum(each["turned"] for each in said) < NBYTES + SLACK


def test_what_is_wanted_as_it_was_saved_or_whole_is_read_by_who_holds_it(said):
    assert all(NBYTES // 2 <= each["same"] < NBYTES // 2 + SLACK for each in said)
    assert all(NBYTES <= each["whole"] < NBYTES + SLACK for each in said)


def test_each_process_has_what_it_wants_however_it_was_read(said):
    assert all(each[f"{name} is right"] for each in said for name in ("turned", "same", "whole"))


def test_damage_that_one_process_reads_is_heard_by_all(said):
    assert "cannot read turned" in said[0]["heard"]
    assert said[0]["heard"] == said[1]["heard"]


def test_all_processes_fall_back_from_damage_that_one_of_them_reads(said):
    assert [each["resumed"] for each in said] == [1, 1]
    assert all(each["resumed is right"] for each in said)
