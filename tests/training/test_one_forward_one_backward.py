"""1F1B: the values of one device, the ticks of its schedule, memory that does not grow with microbatches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.program._jaxprs import equations, inside
from training.pipelines import LAYERS, RULES, batch_of, layout_of, loss, step_of, updated

BY_1F1B = {"pipeline_schedule": "1f1b"}


def of_all_kinds(params, batch):
    """Return a loss whose layers have trained operands of every kind, under calls."""
    gain, shift = params["gain"], params["gain"] * batch["x"]  # one for all microbatches, and one of each
    of_each_layer = params["first"] * batch["x"] * jnp.arange(1.0, 5)[:, None]

    def block(layer, x):
        weights, own = layer
        return x + jnp.tanh(x * weights["w"] + gain + shift) * own, (x**2).sum()

    @jax.jit
    @jax.checkpoint
    def stack(params, x):
        return mw.nn.layers(block, (params["layers"], of_each_layer), x, has_aux=True)

    x, squares = stack(params, batch["x"])
    return mw.Mean((x * params["last"]).sum() + squares.sum() * params["last"], 3)


def test_gradients_of_operands_of_every_kind_are_those_of_all_rows():
    params = {"layers": {"w": jnp.arange(4.0) - 2}, "first": 0.5, "gain": 0.3, "last": 2.0}
    params = jax.tree.map(jnp.float32, params)
    layout = mw.Layout(mw.make_mesh({"pipeline": 2}, jax.devices()[:2]), RULES[1:])
    state = mw.training.init_state(lambda _: params, optax.sgd(1.0), 0, layout)
    batch = {"x": jnp.linspace(-1, 1, 6)}
    expected = jax.grad(lambda params: of_all_kinds(params, batch).total / 9)(params)
    step = mw.make_step(of_all_kinds, optax.sgd(1.0), layout, microbatches=3, **BY_1F1B)
    found = jax.tree.map(jnp.subtract, params, jax.device_get(step(state, batch)[0].params))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "microbatches"),
    [
        ("pipeline=2", 3),
        ("pipeline=4", 4),
        ("pipeline=4", 16),
        ("pipeline=4", 2),
        ("data=2,pipeline=4", 8),
        ("pipeline=2,fsdp=2,tensor=2", 6),
    ],
)
def test_updates_and_metrics_are_those_of_one_device(mesh, microbatches):
    batch = batch_of(4 * microbatches)
    expected, reported = updated("data=1", batch, microbatches=microbatches)
    found, metrics = updated(mesh, batch, microbatches=microbatches, **BY_1F1B)
    assert metrics == pytest.approx(reported, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.slow
def test_gradients_are_those_of_one_device_to_a_millionth():
    def gradient(mesh, **settings):
        (step, state), batch = step_of(mesh, microbatches=8, **settings), batch_of(32)
        before = jax.device_get(state.params)
        return jax.tree.map(np.subtract, before, jax.device_get(step(state, batch)[0].params))

    expected, found = gradient("data=1"), gradient("pipeline=4", **BY_1F1B)
    error = jax.tree.map(lambda x, y: np.linalg.norm(x - y) / np.linalg.norm(y), found, expected)
    assert max(jax.tree.leaves(error)) < 1e-6


def times(jaxpr, primitive):
    """Return how often a primitive runs."""
    found = 0
    for eqn in jaxpr.eqns:
        within = sum(times(getattr(inner, "jaxpr", inner), primitive) for inner in inside(eqn))
        found += within * eqn.params.get("length", 1) + (eqn.primitive.name == primitive)
    return found


@functools.cache
def traced(microbatches):
    step, state = step_of("pipeline=4", microbatches=microbatches, **BY_1F1B)
    step.trace(mw.base._internal.abstract(state), batch_of(4 * microbatches))
    return step.jaxpr


@pytest.mark.parametrize("microbatches", [8, pytest.param(5, marks=pytest.mark.slow)])
def test_a_step_has_the_ticks_of_its_schedule(microbatches):
    ticks = mw.training.OneForwardOneBackward(4, microbatches).ticks
    assert ticks == 8 + 4 - 1
    assert (
        times(traced(microbatches).jaxpr, "tanh") == 2 * ticks * LAYERS // 4
    )  # in a layer, forward and back


def test_nothing_that_grows_with_the_microbatches_is_kept_over_the_ticks():
    def kept(microbatches):
        scans = (eqn for eqn in equations(traced(microbatches)) if eqn.primitive.name == "scan")
        return sorted(str(var.aval) for eqn in scans for var in eqn.outvars)

    assert kept(8) == kept(32)


@pytest.mark.slow
def test_a_compiled_step_keeps_no_more_than_as_many_microbatches_as_stages():
    deep, rows, width, length = 32, 8, 64, 64

    def block(w, x):
        return x + jnp.tanh(x @ w["up"]) @ w["down"]

    def of_deep(params, batch):
        block_of_inputs = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable)
        return jnp.mean(mw.nn.layers(block_of_inputs, params["layers"], params["table"][batch["x"]]) ** 2)

    def params(key):
        up = jax.random.normal(key, (deep, width, 4 * width))
        return {"layers": {"up": up, "down": up.swapaxes(1, 2)}, "table": jnp.ones((16, width))}

    layout = mw.Layout(mw.make_mesh({"pipeline": 4}, jax.devices()[:4]), RULES[1:])
    state = mw.training.abstract_state(params, optax.sgd(1.0), layout)

    def temporary(microbatches, **settings):
        batch = {"x": jax.ShapeDtypeStruct((rows * microbatches, length), np.int32)}
        step = mw.make_step(of_deep, optax.sgd(1.0), layout, microbatches=microbatches, **settings)
        return step.compile(state, batch).memory_analysis().temp_size_in_bytes

    large = temporary(32, **BY_1F1B)
    assert large < temporary(4)  # all four of which GPipe keeps
    assert large < 1.02 * temporary(8, **BY_1F1B)


@pytest.mark.slow
def test_gradients_of_narrow_weights_add_up_in_float32():
    def linear(params, batch):
        x = mw.nn.layers(lambda layer, x: x + layer["w"].sum(), params["layers"], batch["x"])
        return mw.Mean(x.astype(jnp.float32).sum(), 1)

    step, state = step_of("pipeline=2", linear, microbatches=300, compute_dtype="bfloat16", **BY_1F1B)
    before = jax.device_get(state.params["layers"]["w"])
    new, _ = step(state, {"x": np.ones(600, jnp.bfloat16)})
    np.testing.assert_allclose(before - np.asarray(new.params["layers"]["w"]), 2.0, rtol=1e-2)


def two_stacks(params, batch, key):
    first, second = (loss(params, batch, key)[0] for _ in range(2))
    return first.value + second.value


def test_a_loss_with_two_stacks_is_refused():
    step, state = step_of("pipeline=4", two_stacks, microbatches=4, **BY_1F1B)
    with pytest.raises(UsageError, match=r"calls mw\.nn\.layers 2 times"):
        step.trace(mw.base._internal.abstract(state), batch_of(16))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipeline_rounds": 2, **BY_1F1B}, "through the stages once, but pipeline_rounds=2"),
        ({"pipeline_schedule": "zero"}, "pipeline_schedule='zero' is not known"),
    ],
)
def test_schedules_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        mw.make_step(loss, optax.sgd(1.0), layout_of("pipeline=4"), microbatches=8, **settings)


def test_layers_that_do_not_divide_are_refused():
    layout = mw.Layout(mw.make_mesh({"pipeline": 8}), (mw.parallel.match(".*"),))
    init = lambda key: {"w": jnp.zeros((12, 4, 4))}
    state = mw.training.abstract_state(init, optax.sgd(1.0), layout)
    of_twelve = lambda params, batch: mw.nn.layers(lambda w, x: x @ w, params["w"], batch["x"]).mean()
    step = mw.make_step(of_twelve, optax.sgd(1.0), layout, microbatches=8, **BY_1F1B)
    with pytest.raises(LayoutError, match="12 layers do not divide into 8 stages"):
        step.trace(state, {"x": np.ones((64, 4), np.float32)})


def test_ticks_and_waiting_are_those_of_gpipe():
    for microbatches in (4, 8, 64):
        schedule, ring = mw.training.OneForwardOneBackward(4, microbatches), mw.training.Ring(4, microbatches)
        assert (schedule.ticks, schedule.idle_share) == (ring.ticks, ring.idle_share)


def test_each_stage_goes_forward_and_back_once_for_each_microbatch():
    for line in mw.training.OneForwardOneBackward(4, 6).drawn(1000):
        cells = [cell for cell in line.split() if cell != "."]
        assert sorted(cells) == sorted([*map(str, range(6)), *(f"{i}'" for i in range(6))])
        assert all(cells.index(str(i)) < cells.index(f"{i}'") for i in range(6))


def test_a_circular_schedule_is_1_28_times_as_quick():
    by_1f1b, circular = mw.training.OneForwardOneBackward(8, 16), mw.training.Ring(8, 16, rounds=4)
    assert by_1f1b.ticks / (circular.ticks / 4) >= 1.28


@pytest.mark.slow
def test_idle_ticks_and_stages_computed_again_do_not_count_as_work_of_the_model():
    step, state = step_of("data=1", microbatches=8)
    step.trace(mw.base._internal.abstract(state), batch_of(32))
    expected, found = mw.observe.count_flops(step.jaxpr), mw.observe.count_flops(traced(8))
    assert found.model == pytest.approx(expected.model, rel=1e-3)
    assert found.hardware > 4 / 3 * found.model
