"""The first NaN of a run is traced to its operation, line, layer, examples and devices."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.planted import nans

import meshwright as mw
from meshwright.errors import DivergedError

QUICK = ("masked_row", "gradient_of_sqrt", "layer")
"""The faults that `make test` tries; `make test-slow` tries all."""


@pytest.mark.parametrize(
    "fault", [f if f in QUICK else pytest.param(f, marks=pytest.mark.slow) for f in nans.EXPECTED]
)
def test_a_planted_nan_is_named(tmp_path, fault):
    experiment = nans.experiment(str(tmp_path / "run"), fault)
    with pytest.raises(DivergedError):
        mw.run(experiment)
    before = {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}
    found = mw.replay.first_nan(experiment)
    expected = nans.EXPECTED[fault]
    assert found.step == nans.BAD_STEP
    assert found.chain[0].operation == expected["operation"]
    assert found.chain[0].part == expected["part"]
    assert expected.get("loops", "") in "".join(found.chain[0].loops)
    if "rows" in expected:
        assert found.rows == expected["rows"]
        assert found.examples == [(nans.BAD_STEP - 1) * nans.BATCH + nans.BAD_ROW]
        assert found.devices == {f"cpu:{nans.BAD_ROW}": [nans.BAD_ROW]}
    if expected["part"] != "input":
        assert "nans.py" in found.chain[0].line
    assert before.items() <= {path: path.read_bytes() for path in before}.items()


def log_of_draws(params, batch, key):
    return (params["w"] * batch["x"] * jnp.log(jax.random.uniform(key) - 0.1)).mean()


def described(workdir, **more):
    settings = {
        "model": lambda key: {"w": jnp.ones(())},
        "loss": log_of_draws,
        "optimizer": optax.sgd(1e-3),
        "input": mw.Input({"x": np.ones((320, 4), np.float32)}, batch_size=32, shuffle=False),
        "max_steps": 8,
    }
    return mw.Experiment(workdir=str(workdir), **settings | more)


def test_what_the_run_chose_for_auto_is_taken_again(tmp_path):
    seed = 13  # 4 microbatches, which draw numbers of their own, take the logarithm of less than 0 in step 5
    mw.run(described(tmp_path, seed=seed, microbatches=4, max_steps=2))
    assert mw.replay.first_nan(described(tmp_path, seed=seed, microbatches="auto"), until=8).step == 5
    assert mw.replay.first_nan(described(tmp_path, seed=seed, microbatches=1), until=8) is None
