"""A run that is stopped and continued is the run that was not."""

import jax
import numpy as np
import optax
import pytest

import meshwright as mw

EXAMPLES = {"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)}
LAYOUT = mw.Layout(mw.make_mesh("data=4,fsdp=2"), (mw.fsdp(),))
TX = optax.chain(optax.adam(0.1), mw.keep_ema(0.9))


def init(key):
    return {"w": jax.random.normal(key, (4, 2))}


def loss(params, batch, key):
    kept = jax.random.bernoulli(key, 0.5, batch["x"].shape)
    return (((batch["x"] * kept) @ params["w"]) ** 2).mean()


@pytest.fixture
def set_default():
    """Return a function that changes JAX's default implementation of keys, for the rest of the test."""
    before = jax.config.jax_default_prng_impl
    yield lambda impl: jax.config.update("jax_default_prng_impl", impl)
    jax.config.update("jax_default_prng_impl", before)


def finished(run, **more):
    described = {"input": mw.Input(EXAMPLES, batch_size=16), "max_step": 6, "log_every": 1} | more
    return mw.run(mw.Experiment(run=str(run), model=init, loss=loss, optimizer=TX, **described))


def losses(run):
    reports = mw.metrics.read_jsonl(run / "metrics.jsonl")
    return [(report["step"], report["loss"]) for report in reports if "loss" in report]


def test_under_another_default_implementation_of_keys_a_run_goes_on_to_the_bit(set_default, tmp_path):
    expected = finished(tmp_path / "undisturbed").state.params["w"]
    finished(tmp_path / "changed", max_step=3)
    set_default("rbg")
    found = finished(tmp_path / "changed").state.params["w"]
    np.testing.assert_array_equal(found, expected)
    assert losses(tmp_path / "changed") == losses(tmp_path / "undisturbed")


class Killed(BaseException):
    """What ends a run at once."""


def attempt(directory, step, seen, dies_at):
    """Go on from the newest checkpoint, as a process that is started again does, up to 8 updates."""
    data = mw.batches(EXAMPLES, 16, LAYOUT.batch_sharding, seed=0)

    def log(tick, metrics, scores):
        if not tick.last:
            seen[tick.step] = float(metrics["loss"].value)
        if tick.step == dies_at:
            raise Killed

    with mw.Checkpoints(directory) as checkpoints:
        target = mw.abstract_state(init, TX, LAYOUT)
        state = checkpoints.resume(target, data, otherwise=lambda: mw.init_state(init, TX, 0, LAYOUT))
        return mw.fit(step, state, data, steps=8, log=log, save=checkpoints.saver(mw.every(2)))


def test_killed_after_each_of_its_steps_a_run_has_the_losses_of_the_undisturbed(tmp_path):
    step, undisturbed, seen = mw.make_step(loss, TX, LAYOUT), {}, {}
    expected = attempt(tmp_path / "undisturbed", step, undisturbed, dies_at=None)
    for dies_at in range(1, 9):
        with pytest.raises(Killed):
            attempt(tmp_path / "killed", step, seen, dies_at)
    found = attempt(tmp_path / "killed", step, seen, dies_at=None)
    assert seen == undisturbed
    jax.tree.map(np.testing.assert_array_equal, found, expected)
