"""`examples/decoder.py`: trained at its smallest, described and traced at its largest."""

import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.cli import main
from meshwright.engine._describe import describe
from meshwright.lm._models import decoder
from meshwright.plan import _internal as plan

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def experiment():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("decoder").experiment


@pytest.mark.parametrize(("size", "num_params"), [("7b", 6.74e9), ("70b", 69.0e9)])
def test_any_size_is_described_and_traced_without_an_array(size, num_params, experiment, mesh):
    before = jax.live_arrays()
    described = experiment(size=size, batch_size=8, length=256)
    state = mw.training.abstract_state(described.model, described.optimizer, mw.Layout(mesh, described.rules))
    batch = {"tokens": jax.ShapeDtypeStruct((8, 257), np.int32)}
    grads = jax.eval_shape(
        jax.grad(lambda params, batch: described.loss(params, batch, None).value), state.params, batch
    )
    assert mw.training.num_params(grads) == pytest.approx(num_params, rel=0.001)
    assert "Config" in describe(described)
    assert len(jax.live_arrays()) == len(before)


@pytest.mark.slow
def test_it_learns_the_bytes_of_a_file(experiment, tmp_path):
    described = experiment(
        workdir=str(tmp_path / "run"),
        file=decoder.__file__,
        mesh="data=8",
        batch_size=8,
        length=16,
        steps=20,
        learning_rate=1e-2,
        compute_dtype=None,
        layer_remat="everything",
    )
    mw.run(described)
    losses = [
        line["loss"] for line in mw.observe.read_jsonl(tmp_path / "run/metrics.jsonl") if "loss" in line
    ]
    assert losses[-1] < losses[0] - 0.3


@pytest.mark.slow
def test_what_a_plan_says_to_change_does_so_after_the_experiments_name(experiment, capsys):
    site = plan.site_of(experiment(batch_size=64, length=256), plan.hardware_named("h100:1x8"))
    changes = [*plan.tried(site, [{"remat": "dots"}, {"mesh": "data=2,fsdp=4", "microbatches": 2}])]
    assert len(changes) == 2
    for change in changes:
        settings = ("batch_size=64", "length=256", *str(change).split())
        assert main(["plan", "decoder:experiment", *settings, "--on", "h100:1x8", "--traced", "--json"]) == 0
        typed = json.loads(capsys.readouterr().out)
        assert typed["settings"] == change.plan.settings
        assert (typed["mesh"], typed["memory"]["peak"]) == (change.plan.mesh, change.plan.memory.peak)
        assert typed["time"]["seconds"] == change.plan.time.seconds
