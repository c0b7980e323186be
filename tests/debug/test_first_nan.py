"""The first NaN of a run is traced to its operation, line, layer, examples and devices."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from benchmarks.planted import nans

import meshwright as mw
from meshwright.debug._words import _MODELS, _STEP
from meshwright.engine._skipped_batches import position_of_data
from meshwright.errors import DivergedError

FIRST = "gradient_of_sqrt"
"""The fault that `make test` tries; `make nightly` tries the others."""


@pytest.mark.parametrize("fault", [FIRST, *(fault for fault in nans.EXPECTED if fault != FIRST)])
@pytest.mark.daily(1)
def test_a_planted_nan_is_named(tmp_path, fault):
    experiment = nans.experiment(str(tmp_path / "run"), fault)
    with pytest.raises(DivergedError):
        mw.run(experiment)
    before = {path: path.read_bytes() for path in (tmp_path / "run/checkpoints").rglob("*") if path.is_file()}
    found = mw.debug.first_nan(experiment)
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


@pytest.mark.slow
def test_what_the_run_chose_for_auto_is_taken_again(tmp_path):
    seed = 13  # 4 microbatches, which draw numbers of their own, take the logarithm of less than 0 in step 5
    mw.run(described(tmp_path, seed=seed, microbatches=4, max_steps=2))
    assert mw.debug.first_nan(described(tmp_path, seed=seed, microbatches="auto"), until=8).step == 5
    assert mw.debug.first_nan(described(tmp_path, seed=seed, microbatches=1), until=8) is None


def test_the_files_by_which_lines_are_told_apart_are_there():
    assert Path(_STEP).is_file()
    assert all(Path(folder).is_dir() for folder in _MODELS)


def test_a_key_data_of_the_position_is_taken_apart_only_where_the_run_has_put_it():
    text = {"data": "3f1c", "position": 7}
    assert position_of_data(text) == text
    assert position_of_data({"batches": 7, "left_out": [], "recent": {}, "data": text}) == text


@pytest.mark.slow
def test_a_run_on_text_whose_examples_have_no_numbers_is_explained(tmp_path):
    (tmp_path / "a.txt").write_text("hello world\n" * 200)
    tokens = mw.data.text(tmp_path / "a.txt", tokenizer=mw.lm.Bytes(), length=8, store=tmp_path / "tokens")
    loss = lambda params, batch: jnp.log(params["w"] * (batch["tokens"] - 500.0)).mean()
    found = mw.debug.first_nan(described(tmp_path / "run", loss=loss, input=mw.Input(tokens, batch_size=8)))
    assert (found.step, found.chain[0].operation, found.examples) == (1, "log", [])


def test_examples_are_named_after_batches_that_the_run_leaves_out(tmp_path):
    x = np.ones((256, 4), np.float32)
    x[5 * 8 + 3] = x[7 * 8 + 6] = np.nan  # one batch to leave out, with one before and after it, and the next
    data = mw.Input({"x": x}, batch_size=8, shuffle=False)
    loss = lambda params, batch: (params["w"] * batch["x"]).mean()
    rule = mw.engine.Spikes(at_least=8, max_rollbacks=1)
    experiment = described(tmp_path, loss=loss, input=data, spikes=rule, save=mw.Save(when=4))
    with pytest.raises(DivergedError, match="another loss spike"):
        mw.run(experiment)
    found = mw.debug.first_nan(experiment, until=8)
    assert (found.step, found.rows, found.examples) == (5, [6], [7 * 8 + 6])
