"""A run that diverges leaves checkpoints that it can be continued from, and names the one that it will be."""

import contextlib
import json
import re
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from engine.experiment.runs import experiment
from meshwright.engine import _directory
from meshwright.errors import DivergedError, Interrupted

GOOD = np.random.default_rng(0).normal(size=(96, 4)).astype(np.float32)


def bad(step):
    """Examples whose batch of 16 at this step makes a gradient NaN of a loss that is finite: sqrt at 0."""
    return {"x": np.where(np.arange(96)[:, None] // 16 == step - 1, 0, GOOD)}


def init(key):
    return {"w": jax.random.normal(key, (4,))}


def loss(params, batch, key):
    return jnp.sqrt((batch["x"] ** 2).mean() * (params["w"] ** 2).sum())


def described(run, examples, **more):
    given = mw.Input(examples, batch_size=16, shuffle=False)
    usual = {
        "model": init,
        "loss": loss,
        "input": given,
        "save": mw.Save(when=2),
        "logging": mw.Logging(every=1),
    }
    return experiment(run, **usual | more)


def saved(run):
    """The steps of the checkpoints, all of which are finite."""
    steps = []
    for path in sorted((run / "checkpoints").glob("step_*")):
        source = mw.checkpoints.open_source(path)
        assert np.isfinite(source.read("params/w", (slice(0, 4),))).all()
        steps.append(source.step)
    return steps


def test_a_gradient_that_is_not_finite_is_not_saved_and_mended_data_continue(tmp_path):
    newest = r"after step 4 is not finite: params/w;(.|\n)*newest checkpoint: step 2"
    with pytest.raises(DivergedError, match=newest):
        mw.run(described(tmp_path, bad(4)))
    assert saved(tmp_path) == [2]
    assert json.loads((tmp_path / "outcome.json").read_text())["ended"] == "diverged"
    assert mw.run(described(tmp_path, {"x": GOOD}, max_steps=6)).step == 6
    assert saved(tmp_path) == [4, 6]


def test_the_newest_checkpoint_is_named_when_its_save_has_ended(tmp_path, monkeypatch):
    reported, open_directory = threading.Event(), _directory.open_directory

    @contextlib.contextmanager
    def slow(experiment, warn):
        with open_directory(experiment, warn) as (directory, _):
            yield directory, reported.wait

    def third(step, values):
        if step == 3:
            reported.set()

    monkeypatch.setattr(_directory, "open_directory", slow)
    nan_at_three = lambda params, batch, key: loss(params, batch, key) / (batch["x"] ** 2).sum()
    with pytest.raises(DivergedError, match=r"loss reported at step 3 is nan(.|\n)*checkpoint: step 2"):
        mw.run(described(tmp_path, bad(3), loss=nan_at_three, logging=mw.Logging(every=1, trackers=(third,))))


@pytest.mark.parametrize("ends", [{"max_steps": 3}, {"epochs": 1}])
def test_the_last_save_is_judged_too(tmp_path, ends):
    step = ends.get("max_steps", 6)
    given = mw.Input(bad(step), batch_size=16, shuffle=False, epochs=ends.get("epochs"))
    max_steps = ends.get("max_steps", 10)
    with pytest.raises(DivergedError, match=f"after step {step} is not finite"):
        mw.run(described(tmp_path, bad(step), input=given, max_steps=max_steps, save=mw.Save(when=99)))
    assert saved(tmp_path) == []


def terminating(step, values):
    if step == 3 and "loss" in values:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("stopped", [{"logging": mw.Logging(every=1, trackers=(terminating,))}])
def test_a_run_that_is_told_to_stop_saves_no_state_that_is_not_finite(tmp_path, stopped):
    with pytest.raises(DivergedError, match=r"after step 3 is not finite(.|\n)*checkpoint: step 2"):
        mw.run(described(tmp_path, bad(3), **stopped))
    assert saved(tmp_path) == [2]
    with pytest.raises(Interrupted):
        mw.run(described(tmp_path, {"x": GOOD}, **stopped))
    assert saved(tmp_path) == [2, 3]


def test_skipped_updates_are_no_divergence(tmp_path):
    guarded = mw.training.skip_exploding(optax.sgd(0.01))
    assert mw.run(described(tmp_path, bad(4), optimizer=guarded, max_steps=6)).step == 6
    assert saved(tmp_path) == [4, 6]


def test_a_guard_of_some_parameters_lets_no_others_diverge(tmp_path):
    """The half that is guarded skips, and the loss would weigh nothing."""
    tx = mw.training.by_path([("v", mw.training.skip_exploding(optax.sgd(0.1))), (".*", optax.sgd(0.1))])
    two = lambda key: {"v": jnp.ones(4), "w": jnp.ones(4)}
    both = lambda params, batch, key: jnp.log((batch["x"] ** 2).mean()) * (params["v"] + params["w"]).mean()
    with pytest.raises(DivergedError, match=r"reported at step 3 is -?(inf|nan)(.|\n)*checkpoint: step 2"):
        mw.run(described(tmp_path, bad(3), model=two, loss=both, optimizer=tx))
    assert saved(tmp_path) == [2]


def test_a_checkpoint_that_is_not_finite_is_not_gone_on_from(tmp_path, monkeypatch):
    """Others may have saved it so, as a loop of one's own."""
    with monkeypatch.context() as unjudged:
        unjudged.setattr("meshwright.engine._open_run.check_finite", lambda *_: lambda *_: None)
        mw.run(described(tmp_path, bad(4), max_steps=4))
    with pytest.raises(DivergedError, match=re.escape("after step 4 is not finite: params/w.")):
        mw.run(described(tmp_path, {"x": GOOD}))
