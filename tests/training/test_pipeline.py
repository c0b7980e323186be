"""`mw.nn.layers` on the axis `pipeline`: the values of one device, in as many ticks as the schedule says."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.lm._models import decoder
from meshwright.program._jaxprs import equations
from training.pipelines import LAYERS, WIDTH, batch_of, init, layout_of, loss, step_of, updated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "microbatches", "pipeline_rounds"),
    [
        ("pipeline=4", 8, 1),
        ("data=2,pipeline=4", 4, 2),
        ("pipeline=2,fsdp=2,tensor=2", 3, 2),
        ("pipeline=4", 2, 1),
    ],
)
def test_updates_and_metrics_are_those_of_one_device(mesh, microbatches, pipeline_rounds):
    batch = batch_of(24 if microbatches == 3 else 16)
    expected, reported = updated("data=1", batch, microbatches=microbatches)
    found, metrics = updated(mesh, batch, microbatches=microbatches, pipeline_rounds=pipeline_rounds)
    assert metrics == pytest.approx(reported, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_updates_with_inferred_rules_and_tensor_are_those_of_one_device(schedule):
    cfg, batch = decoder.Config(layers=2), {"tokens": np.arange(4 * 17, dtype=np.int32).reshape(4, 17)}
    of_decoder = functools.partial(decoder.loss, cfg)
    params = decoder.init(cfg, jax.random.key(0))

    def updated(sizes, **settings):
        mesh = mw.make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
        with mw.parallel._internal.in_mesh(mesh):
            layout = mw.Layout(mesh, (mw.infer_rules(params, of_decoder, batch),))
        step = mw.make_step(of_decoder, optax.sgd(1.0), layout, microbatches=2, **settings)
        state, metrics = step(mw.training.state_from(params, optax.sgd(1.0), 0, layout), batch)
        return jax.device_get(state.params), float(metrics["loss"])

    expected, reported = updated({"data": 1})
    found, total = updated({"pipeline": 2, "tensor": 2}, pipeline_schedule=schedule)
    assert total == pytest.approx(reported, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize(("microbatches", "rounds"), [(8, 1), (5, 1), (8, 2)])
def test_a_step_has_the_ticks_of_its_schedule(microbatches, rounds):
    step, state = step_of("pipeline=4", microbatches=microbatches, pipeline_rounds=rounds)
    step.trace(mw.base._internal.abstract(state), batch_of(4 * microbatches))
    lengths = [eqn.params["length"] for eqn in equations(step.jaxpr) if eqn.primitive.name == "scan"]
    assert lengths.count(microbatches * rounds + 4 - 1) == 2  # forward and backward
    assert lengths.count(LAYERS // (4 * rounds)) >= 2  # the layers of a stage, in each of the two


@pytest.mark.slow
def test_gradients_of_narrow_weights_add_up_in_float32():
    def linear(params, batch):
        x = mw.nn.layers(lambda layer, x: x + layer["w"].sum(), params["layers"], batch["x"])
        return mw.Mean(x.astype(jnp.float32).sum(), 1)

    step, state = step_of("pipeline=2", linear, microbatches=300, compute_dtype="bfloat16")
    new, _ = step(
        mw.parallel.copy_to(state, jax.tree.map(lambda x: x.sharding, state)),
        {"x": np.ones(600, jnp.bfloat16)},
    )
    gradient = np.asarray(state.params["layers"]["w"]) - np.asarray(new.params["layers"]["w"])
    np.testing.assert_allclose(gradient, 2.0, rtol=1e-2)  # bfloat16 has no 257


@pytest.mark.slow
def test_an_evaluation_sends_one_layer_at_a_time():
    layout = layout_of("data=2,pipeline=4")
    params, batch = init(jax.random.key(0)), batch_of(16)
    expected = loss(params, batch, jax.random.key(1))
    params = jax.device_put(params, layout.shardings(params))
    batch = jax.device_put(batch, layout.batch_sharding)
    with mw.parallel._internal.in_mesh(layout.mesh):
        compiled = (
            jax.jit(mw.parallel._internal.with_rewrites(loss, layout))
            .lower(params, batch, jax.random.key(1))
            .compile()
        )
    found = compiled(params, batch, jax.random.key(1))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, expected)
    assert f"f32[{LAYERS},{WIDTH},{WIDTH}]" not in compiled.as_text()


def in_a_loop(params, batch, key):
    return jax.lax.map(lambda _: loss(params, batch, key)[0].value, jnp.ones(2)).mean()


REFUSED = {
    "no layers that it could split": lambda params, batch: (
        (params["table"] ** 2).mean() + batch["mask"].mean()
    ),
    "8 layers do not divide into 16 stages": loss,
    "inside a 'scan'": in_a_loop,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_pipeline_is_refused(message):
    step, state = step_of("pipeline=4", REFUSED[message], microbatches=4, pipeline_rounds=4)
    with pytest.raises(LayoutError, match=message):
        step.trace(mw.base._internal.abstract(state), batch_of(16))


def test_a_model_with_a_state_is_refused():
    layout = layout_of("pipeline=4")
    variables = lambda key: mw.training.Variables(init(key), {"seen": jnp.zeros(())})
    state = mw.training.abstract_state(variables, optax.sgd(1.0), layout)
    of_state = lambda params, batch, key, old: (loss(params, batch, key)[0], {}, old)
    step = mw.make_step(of_state, optax.sgd(1.0), layout)
    with pytest.raises(UsageError, match="a model with a state cannot be trained on the axis 'pipeline'"):
        step.trace(state, batch_of(16))


def test_an_update_of_the_users_is_refused():
    layout = layout_of("pipeline=4")

    def update(params, batch):
        of_params = lambda params: loss(params, batch, jax.random.key(0))[0].value
        value, grads = jax.value_and_grad(of_params)(params)
        return jax.tree.map(jnp.subtract, params, grads), {"loss": value}

    params = jax.eval_shape(init, jax.random.key(0))
    with pytest.raises(LayoutError, match="in an update of your own it is not"):
        mw.training.Step(update, layout).trace(layout.place(params), batch_of(16))


def test_idle_ticks_do_not_count_as_work_of_the_model():
    counts = {}
    for mesh in ("data=1", "pipeline=4"):
        step, state = step_of(mesh, microbatches=4)
        step.trace(mw.base._internal.abstract(state), batch_of(16))
        counts[mesh] = mw.observe.count_flops(step.jaxpr)
    assert counts["pipeline=4"].model == pytest.approx(counts["data=1"].model, rel=1e-3)
    assert counts["pipeline=4"].hardware > counts["pipeline=4"].model


def test_a_circular_schedule_is_1_28_times_as_quick_as_one_round():
    once, circular = mw.training.Ring(8, 16), mw.training.Ring(8, 16, rounds=4)
    assert (once.ticks, circular.ticks) == (16 + 8 - 1, 16 * 4 + 8 - 1)
    assert once.ticks / (circular.ticks / 4) >= 1.28


@pytest.mark.parametrize("schedule", ["gpipe", pytest.param("1f1b", marks=pytest.mark.slow)])
def test_a_loss_of_the_step_is_that_of_one_device(schedule):
    def of_step(params, batch, key, step):
        mean, _ = loss(params, batch, key)
        return mw.Mean(mean.total * (step + 2), mean.count)

    whole, _ = updated("data=1", batch_of(4), loss=of_step, microbatches=2)
    split, _ = updated("pipeline=2", batch_of(4), loss=of_step, microbatches=2, pipeline_schedule=schedule)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), split, whole)
