"""What the pages for those who come from T5X and from Orbax show, is so."""

import functools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import meshwright as mw
from checkpoints.formats.readers import t5x, written

DOCS = Path(__file__).parents[4] / "docs"
T5X, ORBAX = ((DOCS / f"coming-from-{name}.md").read_text() for name in ("t5x", "orbax"))


def run_examples(page):
    """Return what is defined when the examples of a page have run, one after the other."""
    names = {}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)
    return names


def test_the_examples_for_those_who_come_from_t5x_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = np.arange(96, dtype=np.float32).reshape(12, 8)
    arrays = {"target/decoder/wi/kernel": kernel, "state/step": np.array(200, np.int32)}
    t5x.write(tmp_path / "runs/t5x/checkpoint_200", arrays, in_tree=("state/step",))
    names = run_examples(T5X)
    assert np.asarray(names["kernel"]).tolist() == kernel[:4].tolist()
    assert names["halved"]["target"]["decoder"]["wi"]["kernel"].dtype.name == "bfloat16"
    assert names["everything"]["state"]["step"] == 200
    assert t5x.read(tmp_path / "runs/for-t5x/checkpoint_800")["state/step"] == 800


def test_the_examples_for_those_who_come_from_orbax_run(tmp_path, monkeypatch, golden):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(golden / "0.12.8/manager", "runs/orbax")
    names, w = run_examples(ORBAX), written.ARRAYS["params/w"]
    assert (names["position"], names["newest"], names["again"]["state"]["step"]) == (9, 10, 10)
    assert names["params"]["w"].sharding == names["layout"]
    assert np.array_equal(names["everything"]["params"]["w"], w)
    assert np.array_equal(names["first_rows"], w[:2] / 2)
    assert names["bf16"]["twice"].dtype.name == "bfloat16"


@pytest.mark.parametrize("page", [T5X, ORBAX], ids=["t5x", "orbax"])
def test_the_names_that_the_pages_tell_are_there(page):
    told = set(re.findall(r"\bmw\.(\w+(?:\.\w+)?)", page))
    assert len(told) > 10
    for name in told:
        functools.reduce(getattr, name.split("."), mw)
