"""What the page for those who come from T5X shows, is so."""

import re
from pathlib import Path

import numpy as np

from checkpoint.readers import t5x

PAGE = Path(__file__).parents[3] / "docs/coming-from-t5x.md"


def test_the_examples_for_those_who_come_from_t5x_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = np.arange(96, dtype=np.float32).reshape(12, 8)
    arrays = {"target/decoder/wi/kernel": kernel, "state/step": np.array(200, np.int32)}
    t5x.write(tmp_path / "runs/t5x/checkpoint_200", arrays, in_tree=("state/step",))
    names = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(example, names)
    assert np.asarray(names["kernel"]).tolist() == kernel[:4].tolist()
    assert names["halved"]["target"]["decoder"]["wi"]["kernel"].dtype.name == "bfloat16"
    assert names["everything"]["state"]["step"] == 200
    assert t5x.read(tmp_path / "runs/for-t5x/checkpoint_800")["state/step"] == 800
