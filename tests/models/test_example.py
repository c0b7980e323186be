"""`examples/decoder.py`: trained at its smallest, described and traced at its largest."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

import meshwright as mw
from meshwright.experiment import describe
from meshwright.models import decoder

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def experiment():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("decoder").experiment


@pytest.mark.parametrize(("size", "num_params"), [("7b", 6.74e9), ("70b", 69.0e9)])
def test_any_size_is_described_and_traced_without_an_array(size, num_params, experiment, mesh):
    before = jax.live_arrays()
    described = experiment(size=size, batch_size=8, length=256)
    state = mw.abstract_state(described.model, described.optimizer, mw.Layout(mesh, described.rules))
    batch = {"tokens": jax.ShapeDtypeStruct((8, 257), np.int32)}
    grads = jax.eval_shape(
        jax.grad(lambda params, batch: described.loss(params, batch, None).value), state.params, batch
    )
    assert mw.train.num_params(grads) == pytest.approx(num_params, rel=0.001)
    assert "Config" in describe(described)
    assert len(jax.live_arrays()) == len(before)


def test_it_learns_the_bytes_of_a_file(experiment, tmp_path):
    described = experiment(
        run=str(tmp_path / "run"),
        file=decoder.__file__,
        mesh="data=8",
        batch_size=8,
        length=16,
        steps=20,
        learning_rate=1e-2,
        train_dtype=None,
        remat="everything",
    )
    mw.run(described)
    losses = [
        line["loss"] for line in mw.metrics.read_jsonl(tmp_path / "run/metrics.jsonl") if "loss" in line
    ]
    assert losses[-1] < losses[0] - 0.3
