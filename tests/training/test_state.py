import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
LAYOUT = mw.Layout(mw.make_mesh("data=4,tensor=2"), (mw.parallel.match("w|mean", "tensor"),))


def init(key):
    params = {"w": jax.random.normal(key, (4,))}
    return mw.training.Variables(params, {"mean": jnp.zeros(4), "steps": jnp.int32(0)})


def loss(params, batch, key, model_state):
    """Remembers half of what it knew of the mean, and half of the new batch's."""
    mean = (model_state["mean"] + batch["x"].mean(0)) / 2
    new = {"mean": mean, "steps": model_state["steps"] + 1}
    return (((batch["x"] - mean) @ params["w"]) ** 2).mean(), {"mean": mean.mean()}, new


def trained(loss=loss, **more):
    tx = optax.sgd(0.1)
    state, step = mw.training.init_state(init, tx, 0, LAYOUT), mw.make_step(loss, tx, LAYOUT, **more)
    for _ in range(2):
        state, _ = step(state, {"x": X})
    return state


def test_the_loss_replaces_the_model_state():
    state = trained()
    np.testing.assert_allclose(state.model_state["mean"], X.mean(0) * 0.75, rtol=1e-5)
    assert int(state.model_state["steps"]) == 2


def test_microbatches_pass_the_model_state_on_in_their_order():
    expected = np.zeros(4)
    for _ in range(2):
        for i in range(4):
            expected = (expected + X[i::4].mean(0)) / 2
    np.testing.assert_allclose(trained(microbatches=4).model_state["mean"], expected, rtol=1e-5)


def test_the_model_state_is_placed_by_the_rules_and_stays_there():
    state = trained()
    assert state.model_state["mean"].sharding.spec == P("tensor")
    assert mw.training.abstract_state(init, optax.sgd(0.1), LAYOUT).model_state["mean"].sharding.spec == P(
        "tensor"
    )


def test_without_a_model_state_there_is_no_leaf_for_it():
    state = mw.training.abstract_state(lambda key: init(key).params, optax.sgd(0.1), LAYOUT)
    assert mw.parallel.leaf_names(state) == ["step", "params/w", "seed"]


def test_a_model_state_keeps_its_structure_whatever_empty_parts_the_loss_adds():
    def with_empty_parts(*given):
        value, metrics, new = loss(*given)
        return value, metrics, new | {"a": {"b": {}}, "none": None}

    state = trained(with_empty_parts, microbatches=2)
    assert jax.tree.structure(state) == jax.tree.structure(trained(microbatches=2))
    np.testing.assert_array_equal(state.model_state["mean"], trained(microbatches=2).model_state["mean"])


def with_model_state(model_state, new, params=1.0):
    """Train two steps of `params` and a model state that `new` replaces; both are in the loss."""

    def loss(params, batch, key, model_state):
        floats = [x for x in jax.tree.leaves(model_state) if x.dtype == jnp.float32]
        return batch["x"].mean() * params["w"] * (1 + sum(map(jnp.sum, floats))), {}, new(model_state)

    tx, layout = optax.sgd(0.1), mw.Layout(mw.make_mesh("data=4", jax.devices()[:4]))
    state = mw.training.state_from(
        mw.training.Variables({"w": jnp.float32(params)}, model_state), tx, 0, layout
    )
    step = mw.make_step(loss, tx, layout, microbatches=2)
    for _ in range(2):
        state, _ = step(state, {"x": X})
    return state


def test_arrays_without_elements_and_false_values_stay_in_the_model_state():
    kept = {"empty": jnp.zeros((0, 3)), "zero": jnp.float32(0), "off": jnp.bool_(False), "none": {}}
    state = with_model_state(kept, lambda model_state: model_state)
    assert jax.tree.structure(state.model_state) == jax.tree.structure(kept)
    assert {name: x.shape for name, x in mw.base._internal.named_leaves(state.model_state).items()} == {
        "empty": (0, 3),
        "zero": (),
        "off": (),
    }


def test_what_the_loss_says_of_its_state_stands_whatever_its_gradient():
    state = with_model_state({"amax": jnp.float32(5)}, lambda model_state: {"amax": jnp.float32(3)})
    assert state.model_state["amax"] == 3
    assert state.params["w"] != 1


def test_a_model_state_may_hold_typed_keys_and_is_told_and_counted_with_them():
    first = {"rng": jax.random.key(3), "each": jax.random.split(jax.random.key(4), 8)}
    state = with_model_state(first, lambda now: now | {"rng": jax.random.split(now["rng"])[0]})
    expected = first["rng"]
    for _ in range(4):
        expected = jax.random.split(expected)[0]
    assert jnp.array_equal(jax.random.key_data(state.model_state["rng"]), jax.random.key_data(expected))
    assert mw.training._internal.state_sizes(state)["model_state_bytes"] == 9 * 8
    assert "key<fry>" in mw.training.describe_state(state)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda state: 1.0, "must return three values; it returned a value of type float"),
        (lambda state: (1.0, state), r"three values; it returned \(float, dict\)"),
        (lambda state: (1.0, {}, {"mean": state["mean"]}), r"model_state/steps was int32\[\], is missing"),
        (
            lambda state: (1.0, {}, state | {"mean": state["mean"].astype(jnp.bfloat16)}),
            r"model_state/mean was float32\[4\], is bfloat16\[4\]",
        ),
    ],
)
def test_what_a_loss_with_state_may_not_return_is_told(returned, says):
    with pytest.raises(UsageError, match=says):
        trained(lambda params, batch, key, state: returned(state))


def states_of_all_kinds():
    """Parameters as callers hold them: NumPy's, on one device, replicated, split over another mesh."""
    other = mw.Layout(mw.make_mesh("data=2,fsdp=4"))
    return {
        "numpy": np.ones((8, 4), np.float64),
        "device": jnp.ones((8, 4)),
        "replicated": jax.device_put(np.ones(4, np.float32), LAYOUT.replicated),
        "in place": jax.device_put(np.ones(8, np.float32), jax.NamedSharding(LAYOUT.mesh, P("tensor"))),
        "elsewhere": jax.device_put(np.ones((8, 4), np.float32), other.batch_sharding),
    }


def test_training_leaves_the_arrays_it_started_from_alone():
    params, tx = states_of_all_kinds(), optax.adam(0.1)
    layout = mw.Layout(LAYOUT.mesh, (mw.parallel.match("in place|device", "tensor"),))
    step = mw.make_step(lambda params, batch, key: sum(map(jnp.sum, jax.tree.leaves(params))), tx, layout)
    state = mw.training.state_from(params, tx, 0, layout)
    for _ in range(2):
        state, _ = step(state, {"x": X})
    assert all(float(x.sum()) < x.size for x in jax.tree.leaves(state.params))
    assert all(np.all(np.asarray(x) == 1) for x in jax.tree.leaves(params))


def test_a_state_from_parameters_is_the_state_that_init_makes():
    tx, made = optax.contrib.schedule_free(optax.sgd(0.1), 0.1), init(jax.random.key(3))
    built, born = (
        mw.training.state_from(made, tx, 3, LAYOUT),
        mw.training.init_state(lambda key: init(key), tx, 3, LAYOUT),
    )
    assert jax.tree.map(lambda x: (x.dtype, x.sharding), built) == jax.tree.map(
        lambda x: (x.dtype, x.sharding), born
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), built, born)


def test_a_model_of_functional_is_taken_for_the_function_that_makes_its_parameters():
    model, tx = mw.functional((init, lambda params, x, model_state: (x, model_state))), optax.sgd(0.1)
    made, expected = mw.training.init_state(model, tx, 0, LAYOUT), mw.training.init_state(init, tx, 0, LAYOUT)
    jax.tree.map(np.testing.assert_array_equal, made, expected)
    named = mw.base._internal.named_leaves(expected.params)
    around = mw.training.state_around(
        {f"params/{name}": x for name, x in named.items()}, model, tx, 0, LAYOUT
    )
    jax.tree.map(np.testing.assert_array_equal, around, mw.training.init_state(init, tx, 0, LAYOUT))
    adapter = mw.lm.lora("w", rank=1)
    with_matrix = mw.functional((lambda key: {"w": jnp.ones((2, 2))}, lambda params, x: x @ params["w"]))
    assert {*adapter.init(with_matrix)(jax.random.key(0))} == {"base", "adapter"}
