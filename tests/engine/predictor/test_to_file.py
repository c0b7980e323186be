import json
import os
import signal
import subprocess
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import UsageError

NUMBER = 203


class Telling(mw.Deployer):
    """Remembers the number of batches whose progress it is asked to show."""

    def progress(self, items, total, desc):
        self.total = total
        return items


def predictor(mesh="data=2,tensor=4", seed=0, **more):
    return mw.Predictor(Telling(seed=seed, mesh=mesh, verbose=False), predict=predict, **more)


def predict(params, batch, key):
    return {"x": batch * params["w"], "noise": jax.random.normal(key, (*batch.shape, 2))}


def params():
    return {"w": np.float32(0.5)}


@pytest.fixture(scope="module")
def one():
    """A predictor that has compiled."""
    return predictor()


@pytest.fixture(scope="module")
def uninterrupted(one, tmp_path_factory):
    """The bytes of a file of predictions that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "preds.jsonl"
    assert one.predict(range(NUMBER), 4, params(), to=path) == path
    return path.read_bytes()


def test_the_file_has_a_line_of_json_for_each_example(one, uninterrupted):
    lines = [json.loads(line) for line in uninterrupted.splitlines()]
    expected = one.predict(range(NUMBER), 4, params())
    assert [line["x"] for line in lines] == [i / 2 for i in range(NUMBER)]
    np.testing.assert_array_equal([line["noise"] for line in lines], [row["noise"] for row in expected])


KILLED = """
import os, pathlib, signal, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from engine.predictor.test_to_file import NUMBER, params, predictor

def collate(examples):
    if examples[-1] > 100:  # of 203, in batches of 8: it is read a few batches before it is its turn
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(examples)

predictor(collate=collate).predict(range(NUMBER), 4, params(), to=sys.argv[2])
"""


def test_a_killed_call_goes_on_and_comes_to_the_same_bytes(python, tmp_path, uninterrupted):
    path, tests, read = tmp_path / "preds.jsonl", Path(__file__).parents[2], []
    died = subprocess.run([*python, "-c", KILLED, str(tests), str(path)], env=os.environ)
    assert died.returncode == -signal.SIGKILL
    assert not path.exists()
    collate = lambda examples: read.extend(examples) or np.asarray(examples)
    assert predictor(collate=collate).predict(range(NUMBER), 4, params(), to=path) == path
    assert path.read_bytes() == uninterrupted
    assert min(read) >= 24


def test_a_call_that_ended_computes_nothing_when_it_is_made_again(tmp_path, uninterrupted):
    path, read = tmp_path / "preds.jsonl", []
    collate = lambda examples: read.extend(examples) or np.asarray(examples)
    for _ in range(2):
        predictor(collate=collate).predict(range(20), 4, params(), to=path)
    assert len(read) == 24  # each once, and fillers
    assert path.read_bytes() == b"".join(uninterrupted.splitlines(keepends=True)[:20])


OTHERS = {
    "parameters was [0-9a-f]{8}, is now [0-9a-f]{8}": lambda path: predictor().predict(
        range(9), 4, {"w": 2.0}, to=path
    ),
    "seed was 0, is now 1": lambda path: predictor(seed=1).predict(range(9), 4, params(), to=path),
    "examples was 9, is now 10": lambda path: predictor().predict(range(10), 4, params(), to=path),
}


@pytest.mark.parametrize("change", OTHERS)
@pytest.mark.parametrize("suffix", ["", ".part"])
def test_a_file_of_something_else_is_refused_and_left_alone(one, tmp_path, change, suffix):
    path, found = tmp_path / "preds.jsonl", tmp_path / f"preds.jsonl{suffix}"
    one.predict(range(9), 4, params(), to=path)
    content = path.rename(found).read_bytes()
    with pytest.raises(UsageError, match=rf"preds.jsonl{suffix} already holds other predictions: {change}"):
        OTHERS[change](path)
    assert found.read_bytes() == content


def test_a_file_of_unknown_origin_is_refused(one, tmp_path):
    path = tmp_path / "preds.jsonl"
    path.write_text("notes\n")
    with pytest.raises(UsageError, match="parameters was None, is"):
        one.predict(range(9), 4, params(), to=path)
    assert path.read_text() == "notes\n"


def test_a_call_goes_on_on_another_mesh(one, tmp_path, uninterrupted):
    path, half = tmp_path / "preds.jsonl", uninterrupted.splitlines(keepends=True)[:102]
    one.predict(range(NUMBER), 4, params(), to=path)
    path.unlink()
    path.with_name("preds.jsonl.part").write_bytes(b"".join(half))
    run = Telling(seed=0, mesh="data=8", verbose=False)
    mw.Predictor(run, predict=predict).predict(range(NUMBER), 1, params(), to=path)
    assert path.read_bytes() == uninterrupted
    assert run.total == 26 - 12


def test_of_no_examples_the_file_is_empty(one, tmp_path):
    path = one.predict([], 4, params(), to=tmp_path / "new" / "preds.jsonl")
    assert path.read_bytes() == b""


class Row(dict):
    """A dictionary that can be referred to weakly."""

    __hash__ = object.__hash__


def test_outputs_written_are_not_held(tmp_path):
    alive, counts = weakref.WeakSet(), []

    def output(prediction):
        rows = [Row(x=x) for x in prediction["x"]]
        alive.update(rows)
        counts.append(len(alive))
        return rows

    predictor(output=output).predict((i for i in range(800)), 4, params(), to=tmp_path / "preds.jsonl")
    assert len(counts) == 100
    assert max(counts) <= 16  # two batches
