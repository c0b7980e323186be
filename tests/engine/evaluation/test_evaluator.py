import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import UsageError

X = np.random.default_rng(0).normal(size=(21, 4)).astype(np.float32)


def scores(measure, mesh="data=4,tensor=2", when=mw.engine.never, tick=mw.engine.Tick(3, last=True)):
    layout = mw.Layout(mw.make_mesh(mesh))
    state = mw.training.init_state(lambda key: {"w": jnp.ones((4, 3))}, optax.sgd(1.0), 0, layout)
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    return mw.engine.Evaluator(measure, data, layout, when)(tick, state)


def test_every_example_counts_once_and_padding_never():
    found = scores(lambda params, batch: {"sum": (batch["x"] @ params["w"]).sum(-1)})
    np.testing.assert_allclose(found["sum"], X.astype(np.float64).sum(1).mean() * 3, rtol=1e-5)


def test_values_of_each_token_are_averaged_over_tokens():
    found = scores(lambda params, batch: {"x": batch["x"]})
    np.testing.assert_allclose(found["x"], X.astype(np.float64).mean(), rtol=1e-5)


def test_right_and_wrong_make_an_accuracy():
    assert scores(lambda params, batch: {"positive": batch["x"][:, 0] > 0})["positive"] == np.mean(
        X[:, 0] > 0
    )


def test_it_is_due_on_its_steps_and_after_the_last():
    measure = lambda params, batch: {"x": batch["x"]}
    assert scores(measure, when=mw.engine.every(2), tick=mw.engine.Tick(3)) is None
    assert scores(measure, when=mw.engine.every(2), tick=mw.engine.Tick(4)) is not None
    assert scores(measure, when=mw.engine.never, tick=mw.engine.Tick(4, last=True)) is not None


def test_many_batches_do_not_run_away_from_the_device():
    """Unbounded, three hundred launches with collectives deadlock virtual devices."""
    layout = mw.Layout(mw.make_mesh("data=2,fsdp=2,tensor=2"), (mw.parallel.match("w", None, "tensor"),))
    state = mw.training.init_state(lambda key: {"w": jnp.ones((4, 4))}, optax.sgd(1.0), 0, layout)
    many = {"x": np.ones((8 * 300, 4), np.float32)}
    evaluate = mw.engine.Evaluator(
        lambda params, batch: {"x": (batch["x"] @ params["w"]).sum(-1)},
        lambda: mw.data.padded_batches(many, 8, layout.batch_sharding),
        layout,
        mw.engine.never,
    )
    assert evaluate(mw.engine.Tick(1, last=True), state) == {"x": 16.0}


def test_each_device_computes_its_own_examples_only():
    layout = mw.Layout(mw.make_mesh("data=8"))
    seen = []

    def measure(params, batch):
        jax.debug.inspect_array_sharding(batch["x"], callback=seen.append)
        return {"x": batch["x"]}

    state = mw.training.init_state(lambda key: {"w": jnp.ones(4)}, optax.sgd(1.0), 0, layout)
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    mw.engine.Evaluator(measure, data, layout, mw.engine.never)(mw.engine.Tick(1, last=True), state)
    assert seen[0].shard_shape((8, 4)) == (1, 4)


def test_what_was_checked_is_not_traced_again():
    layout, traced = mw.Layout(mw.make_mesh("data=8")), []
    measure = lambda params, batch: traced.append(1) or {"x": batch["x"]}
    target = mw.training.abstract_state(lambda key: {"w": jnp.ones(4)}, optax.adam(1.0), layout)
    state = mw.training.init_state(lambda key: {"w": jnp.ones(4)}, optax.adam(1.0), 0, layout)
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    evaluate = mw.engine.Evaluator(measure, data, layout, mw.engine.every(1))
    evaluate.check(target, {"x": jax.ShapeDtypeStruct((8, 4), np.float32)})
    for step in (1, 2):
        evaluate(mw.engine.Tick(step), state)
    assert traced == [1]


def test_a_state_of_the_user_needs_parameters_only():
    layout = mw.Layout(mw.make_mesh("data=8"))
    Mine = collections.namedtuple("Mine", "params")
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    measure = lambda params, batch: {"sum": (batch["x"] * params["w"]).sum(-1)}
    found = mw.engine.Evaluator(measure, data, layout, mw.engine.never)(
        mw.engine.Tick(1, last=True), Mine({"w": jnp.ones(4)})
    )
    np.testing.assert_allclose(found["sum"], X.astype(np.float64).sum(1).mean(), rtol=1e-5)


def test_a_measure_that_has_averaged_already_is_refused():
    with pytest.raises(UsageError, match=r"x has shape \(\), but the batch has 8 examples"):
        scores(lambda params, batch: {"x": batch["x"].mean()})


def test_a_model_with_state_is_measured_with_it_and_does_not_change():
    layout = mw.Layout(mw.make_mesh("data=8"))
    init = lambda key: mw.training.Variables({"w": jnp.ones(4)}, {"mean": jnp.full(4, 2.0)})
    state = mw.training.init_state(init, optax.sgd(1.0), 0, layout)
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    measure = lambda params, batch, model_state, by=1.0: {
        "centred": by * (batch["x"] - model_state["mean"]).sum(-1)
    }
    found = mw.engine.Evaluator(measure, data, layout, mw.engine.never)(mw.engine.Tick(1, last=True), state)
    np.testing.assert_allclose(found["centred"], (X.astype(np.float64) - 2).sum(1).mean(), rtol=1e-5)
    np.testing.assert_array_equal(state.model_state["mean"], np.full(4, 2.0))


def test_an_argument_of_a_measure_with_a_default_is_not_taken_for_the_model_state():
    layout = mw.Layout(mw.make_mesh("data=8"))
    init = lambda key: mw.training.Variables({"w": jnp.ones(4)}, {"mean": jnp.full(4, 2.0)})
    state = mw.training.init_state(init, optax.sgd(1.0), 0, layout)
    data = lambda: mw.data.padded_batches({"x": X}, 8, layout.batch_sharding)
    measured = mw.engine.Evaluator(lambda params, batch, by=1.0: {}, data, layout, mw.engine.never)
    with pytest.raises(
        UsageError, match=r"is called with \(params, batch, model_state\)\. Arguments of your"
    ):
        measured(mw.engine.Tick(1, last=True), state)
