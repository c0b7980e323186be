"""Two real processes restore checkpoints of others, each what its own devices need."""

import json
import sys
from pathlib import Path

import numpy as np

from checkpoint.readers import redco, t5x, tensorflow
from meshwright.cli._launch import launch_local

PROGRAM = Path(__file__).parent / "two.py"
X = np.arange(32, dtype=np.float32).reshape(8, 4)
ASKED = {
    "t5x": "target/x",
    "t5": "target/token_embedder/embedding",
    "redco": "params/x",
}


def test_each_of_two_processes_reads_its_own_half(tmp_path):
    t5x.write(tmp_path / "t5x/checkpoint_1", {"target/x": X}, chunks={"target/x": (2, 4)})
    tensorflow.write(tmp_path / "t5/model.ckpt-1", {"shared/embedding": X})
    redco.write(tmp_path / "redco", "last", {"x": X}, None, step=1)
    (tmp_path / "asked.json").write_text(json.dumps(list(ASKED.items())))
    assert launch_local([sys.executable, str(PROGRAM), str(tmp_path)], 2) == 0
    for number, half in enumerate((X[:4], X[4:])):
        said = json.loads((tmp_path / f"{number}.json").read_text())
        assert said == dict.fromkeys(ASKED, half.tolist())
