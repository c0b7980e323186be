"""Where the data stood: kept with each checkpoint, and given back to as many processes as it holds for."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.checkpoints._retention import best, keep_any, last, multiples
from meshwright.errors import CheckpointError, UsageError
from meshwright.launch._internal import launch_local
from meshwright.processes._when import Tick, every


class Foreign:
    """Data of which a process knows its own share only."""

    def __init__(self, position=0):
        self.position = position

    def __next__(self):
        self.position += 1
        return self.position

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class Global(Foreign):
    state_is_global = True


class Opaque(Foreign):
    def get_state(self):
        return self.position

    def set_state(self, state):
        self.position = state


def resumed(directory, data):
    with Checkpoints(directory) as checkpoints:
        checkpoints.resume({"x": 0}, data, otherwise=pytest.fail)
    return data.position


def saved_by(directory, data, step=1):
    with Checkpoints(directory) as checkpoints:
        checkpoints.saver(every(1))(Tick(step), {"x": 0}, data, None)


def test_a_global_state_is_saved_once_and_restored_on_any_number_of_processes(tmp_path):
    saved_by(tmp_path, Global(7))
    assert open_source(tmp_path).extra["data"] == {"position": 7}
    assert resumed(tmp_path, Global()) == 7


def test_the_state_of_our_own_batches_is_global(tmp_path, mesh):
    batches = mw.batches({"x": np.arange(100)}, 8, NamedSharding(mesh, P("data")))
    next(batches)
    saved_by(tmp_path, batches)
    assert open_source(tmp_path).extra["data"] == {"samples": 8, "seed": 0, "num_examples": 100}


def test_any_other_state_is_saved_for_each_process(tmp_path):
    saved_by(tmp_path, Foreign(7))
    assert open_source(tmp_path).extra["data_by_process"] == [{"position": 7}]
    assert resumed(tmp_path, Foreign()) == 7


def test_a_state_of_bytes_is_given_back_as_bytes(tmp_path):
    saved_by(tmp_path, Opaque(b"\x00\xff"))
    assert resumed(tmp_path, Opaque()) == b"\x00\xff"


def test_a_state_that_cannot_be_saved_is_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match=r"Foreign.get_state\(\) must return bytes or JSON .*set"):
        saved_by(tmp_path, Foreign({1, 2}))


@pytest.mark.parametrize("data", [Foreign(), Global()])
def test_states_of_another_number_of_processes_are_refused_even_if_equal(tmp_path, data):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": 0}, {"data_by_process": [{"position": 7}, {"position": 7}]})
    with pytest.raises(CheckpointError, match=r"on 2 processes, but this run has 1\. Run as many"):
        resumed(tmp_path, data)
    assert data.position == 0


STEPS = st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True).map(sorted)


@given(STEPS)
@settings(max_examples=10)
def test_every_checkpoint_that_is_kept_says_where_the_data_stood(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("checkpoints")
    keep = keep_any(last(1), multiples(10), best("loss", "min", 2, without_metric="drop"))
    with Checkpoints(directory, keep=keep) as checkpoints:
        save = checkpoints.saver(every(1))
        for step in steps:
            save(Tick(step), {"x": step}, Global(step * 64), {"loss": abs(step - 20.0)})
    for path in directory.glob("step_*"):
        source = open_source(path)
        assert source.extra["data"] == {"position": source.step * 64}


PROGRAM = """
import json, pathlib, sys
from meshwright.processes import _internal as processes

cluster = processes.start_processes(timeout_seconds=400)
me = cluster.process_id
from meshwright import Checkpoints
from meshwright.errors import UsageError
from meshwright.checkpoints import open_source
from meshwright.engine import Tick, every

class Share:
    position = 0
    def get_state(self):
        return {"process": me, "position": self.position}
    def set_state(self, state):
        assert state["process"] == me
        self.position = state["position"]

where = pathlib.Path(sys.argv[1])
data = Share()
data.position = 100 + me
with Checkpoints(where / "checkpoints") as checkpoints:
    checkpoints.saver(every(1))(Tick(1), {"x": 1}, data, {"loss": 0.5})
    data = Share()
    checkpoints.resume({"x": 0}, data, otherwise=list)
    try:
        checkpoints.save(1, {"x": 2})  # one of them writes it, and knows
    except UsageError as error:
        (where / f"{me}.refused").write_text(str(error))
(where / f"{me}.json").write_text(json.dumps(data.position))
"""


@pytest.fixture(scope="module")
def two_processes(python, tmp_path_factory):
    """Two processes that save each its own state and resume; the folder where it happened."""
    where = tmp_path_factory.mktemp("two")
    assert launch_local([*python, "-c", PROGRAM, str(where)], 2, grace_seconds=20) == 0
    return where


def test_each_of_two_processes_gets_its_own_state_back(two_processes):
    assert [json.loads((two_processes / f"{i}.json").read_text()) for i in range(2)] == [100, 101]


def test_both_of_two_processes_refuse_another_state_of_a_step_that_exists(two_processes):
    said = [(two_processes / f"{i}.refused").read_text() for i in range(2)]
    assert said[0] == said[1]
    assert "step 1 is saved already, with other values of x: " in said[0]


def test_one_process_does_not_take_the_states_of_two(two_processes):
    with pytest.raises(CheckpointError, match="on 2 processes, but this run has 1"):
        resumed(two_processes / "checkpoints", Foreign())


class Thirty:
    """An iterator of Python's kind over 0 to 29."""

    def __init__(self):
        self.state = {"position": 0, "seen": []}

    def __next__(self):
        if self.state["position"] == 30:
            raise StopIteration
        self.state["seen"].append(self.state["position"])
        self.state["position"] += 1
        return self.state["seen"][-1]

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_saved_and_restored_again_and_again_an_iterator_gives_each_element_once(tmp_path):
    seen = []
    for step in range(1, 11):
        data = Thirty()
        with Checkpoints(tmp_path) as checkpoints:
            checkpoints.resume({"x": 0}, data, otherwise=dict)
            seen += [next(data) for _ in range(3)]
            checkpoints.saver(every(1))(Tick(step), {"x": 0}, data, None)
            next(data, None)  # while it is being written
    assert seen == list(range(30))


@pytest.mark.parametrize("data", [None, iter([])])
def test_data_without_a_state_leave_no_trace_and_ask_for_none(tmp_path, data):
    saved_by(tmp_path, data)
    assert "data_by_process" not in open_source(tmp_path).extra
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.resume({"x": 1}, data, otherwise=pytest.fail) == {"x": 0}
