"""Leaves that get other names at each save, or are not saved."""

import numpy as np
import pytest

from meshwright.checkpoints._arrays._restore import restore
from meshwright.checkpoints._checkpoints import Checkpoints
from meshwright.checkpoints._formats._open import open_source
from meshwright.errors import CheckpointError, UsageError


def as_target(name):
    """Say what T5X would call parameters, and leave the frozen ones out."""
    if name.startswith("params/frozen/"):
        return None
    return name.replace("params/", "target/")


@pytest.fixture
def named(make_state, tmp_path):
    """Return a state with frozen parameters, and where it is saved without them."""
    state = make_state()
    state["params"]["frozen"] = {"w": state["params"]["w"] + 1}
    with Checkpoints(tmp_path, names=as_target, cast=[("params/b", "float16")]) as checkpoints:
        checkpoints.save(7, state)
    return state, tmp_path


def test_leaves_are_renamed_and_left_out_at_each_save(named):
    _, directory = named
    found = {name: x.dtype.name for name, x in open_source(directory).arrays().items()}
    assert found == {
        "opt_state/0": "float32",
        "opt_state/1": "float32",
        "step": "int32",
        "target/b": "float16",
        "target/w": "bfloat16",
    }


def test_a_run_that_resumes_makes_anew_what_was_left_out(named, make_state, same_bytes):
    state, directory = named
    fresh = make_state(1)
    fresh["params"]["frozen"] = {"w": fresh["params"]["w"] + 2}
    checkpoints = Checkpoints(directory, names=as_target, cast=[("params/b", "float16")])
    found = checkpoints.resume(state, None, otherwise=lambda: fresh)
    assert checkpoints.resumed == 7
    assert same_bytes(found["params"]["frozen"], fresh["params"]["frozen"])
    assert same_bytes(found["opt_state"], state["opt_state"])
    assert same_bytes(found["params"]["w"], state["params"]["w"])
    np.testing.assert_allclose(found["params"]["b"], state["params"]["b"], rtol=1e-3)


def test_without_the_names_it_is_restored_by_assign(named, same_bytes):
    state, directory = named
    wanted = {"w": state["params"]["w"]}
    assign = [("(.*)", r"target/\1")]
    assert same_bytes(restore(open_source(directory), wanted, assign=assign, ignore=".*"), wanted)
    with pytest.raises(CheckpointError, match=r"params/frozen/w: in the target, but not in the checkpoint"):
        Checkpoints(directory).resume(state, None, otherwise=dict)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (lambda name: "same", "opt_state/0 and opt_state/1 would both be called same"),
        (lambda name: None, "nothing to write: `names` returned None"),
    ],
)
def test_names_that_cannot_be_are_told_before_anything_is_saved(names, said, state, tmp_path):
    with Checkpoints(tmp_path, names=names) as checkpoints:
        for call in (checkpoints.check, checkpoints.left_out, lambda state: checkpoints.save(1, state)):
            with pytest.raises(UsageError, match=said):
                call(state)
    assert not list(tmp_path.glob("step_*"))
