"""Two real processes of two devices each read their shares, and agree on every shape."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.launch._internal import launch_local

PROGRAM = Path(__file__).parent / "two.py"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(python, tmp_path_factory):
    """Where both ran, and what each said."""
    where = tmp_path_factory.mktemp("two")
    assert launch_local([*python, str(PROGRAM), str(where)], 2) == 0
    return where, [json.loads((where / f"{number}.json").read_text()) for number in range(2)]


def reported(where, name):
    return [x["ids"] for x in mw.observe.read_jsonl(where / name / "metrics.jsonl") if "ids" in x]


def alone(tmp_path, examples, **more):
    """What one process of eight devices comes to."""
    loss = lambda params, batch: (
        (params["w"] * batch["x"]).mean(),
        {"ids": (batch["id"] * (1 + jnp.arange(8))).sum()},
    )
    deployer = mw.Deployer(0, verbose=False, workdir=tmp_path)
    made = mw.Trainer(deployer, params={"w": jnp.float32(1)}, loss=loss, optimizer=optax.sgd(1e-3))
    made.fit(examples, batch_size=8, epochs=2, logging=mw.Logging(every=1), **more)
    return float(made.params["w"]), reported(tmp_path.parent, tmp_path.name)


LENGTHS = [1 + i % 8 for i in range(40)]
TEXTS = [{"x": np.full(n, 1 + i, np.float32), "id": np.int32(i)} for i, n in enumerate(LENGTHS)]


def test_batches_of_several_lengths_are_those_of_one_process_also_after_a_restart(run, tmp_path):
    w, ids = alone(tmp_path / "one", mw.data.Bucketed(TEXTS, LENGTHS, (2, 4, 8), {"x": 0}))
    assert reported(run[0], "bucketed") == ids
    assert [said["bucketed"] for said in run[1]] == pytest.approx([w, w], rel=1e-6)


def test_what_is_drawn_is_what_one_process_draws(run, tmp_path):
    noisy = lambda example, rng: {"x": np.full(2, rng.random(), np.float32), "id": example["id"]}
    w, ids = alone(tmp_path / "one", mw.data.mapped(noisy, TEXTS))
    assert reported(run[0], "mapped") == ids
    assert [said["mapped"] for said in run[1]] == pytest.approx([w, w], rel=1e-6)


def test_a_loader_of_all_rows_and_one_of_each_process_s_own_come_to_the_same(run):
    assert reported(run[0], "local") == reported(run[0], "all")
    assert len(reported(run[0], "all")) == 10
    assert run[1][0]["local"] == run[1][1]["local"] == run[1][0]["all"]


def test_a_process_whose_loader_ends_first_ends_both_with_an_error_and_nobody_waits(run):
    for said in run[1]:
        assert said["apart"].startswith("UsageError: the processes of this run differ in the batches")
        assert "x float32[2] on process 0, none are left on 1" in said["apart"]


def test_a_shape_that_nobody_told_is_refused_by_both_and_one_that_was_is_trained_on(run):
    for said in run[1]:
        assert "not compiled for: x was float32[8, 2], is float32[8, 3]" in said["undeclared"]
        assert "mw.data.Batched(loader, shapes=[...])" in said["undeclared"]
        assert isinstance(said["declared"], float)
