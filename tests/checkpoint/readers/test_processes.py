"""Two real processes restore checkpoints of others, each what its own devices need."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpoint.readers import redco, t5x, tensorflow
from checkpoint.readers.real import FIXTURES, REAL, Expected, needs_fixtures, wanted_of
from meshwright.cli._launch import launch_local

PROGRAM = Path(__file__).parent / "two.py"
X = np.random.default_rng(0).standard_normal((512, 512), np.float32)
SLACK = 64 << 10  # beside the data: what the processes say to each other, say
EMBEDDING = "token_embedder/embedding"
MADE = {
    "made/t5x": {"target/x": X},
    "made/t5": {f"target/{EMBEDDING}": X, f"state/param_states/{EMBEDDING}/m": np.zeros(1, np.float32)},
    "made/redco": {"params/x": X},
}


@pytest.fixture(scope="module")
def said(real_checkpoints):
    """Return what each of two processes said of each checkpoint."""
    where = real_checkpoints / "made"
    t5x.write(where / "t5x/checkpoint_1", {"target/x": X}, chunks={"target/x": (64, 512)})
    tensorflow.write(where / "t5/model.ckpt-1", {"shared/embedding": X})
    redco.write(where / "redco", "last", {"x": X}, None, step=1)
    asked = {path: {name: Expected.of(x) for name, x in arrays.items()} for path, arrays in MADE.items()}
    asked |= {path: wanted_of(path) for path in REAL if FIXTURES.is_dir()}
    (real_checkpoints / "asked.json").write_text(json.dumps(asked))
    assert launch_local([sys.executable, str(PROGRAM), str(real_checkpoints)], 2) == 0
    return [json.loads((real_checkpoints / f"{number}.json").read_text()) for number in (0, 1)]


@pytest.mark.parametrize("path", MADE)
def test_each_of_two_processes_has_its_own_half(path, said):
    assert [each[path][0] for each in said] == ["as expected"] * 2


@pytest.mark.parametrize("path", ["made/t5x", "made/t5"])
def test_each_of_two_processes_reads_its_own_half(path, said):
    assert all(each[path][1] <= X.nbytes // 2 + SLACK for each in said)


@needs_fixtures
@pytest.mark.parametrize("path", REAL)
def test_a_real_checkpoint_is_restored_by_two_processes(path, said):
    assert [each[path][0] for each in said] == ["as expected"] * 2
