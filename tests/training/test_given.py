"""States of which something is given."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from meshwright.base import _tree as tree
from meshwright.errors import UsageError
from meshwright.training._initial_values import state_around
from meshwright.training._state import Variables

TX = optax.adam(1e-3)


def init(key):
    keys = jax.random.split(key, 3)
    names = ("body", "head", "tail")
    return {name: jax.random.normal(key, (16, 8)) for name, key in zip(names, keys, strict=True)}


def with_statistics(key):
    return Variables(init(key), {"mean": jnp.zeros(8)})


def addresses(x):
    return [shard.data.unsafe_buffer_pointer() for shard in x.addressable_shards]


@pytest.fixture
def layout():
    return mw.Layout(mw.make_mesh("fsdp=4,tensor=2"), (mw.parallel.match("body", "fsdp", "tensor"),))


def test_what_is_not_given_is_as_if_nothing_were(layout):
    scratch = mw.training.init_state(init, TX, 7, layout)
    state = state_around({"params/head": np.ones((16, 8), np.float32)}, init, TX, 7, layout)
    assert (np.asarray(state.params["head"]) == 1).all()
    for name in ("body", "tail"):
        np.testing.assert_array_equal(state.params[name], scratch.params[name])


def test_with_nothing_given_it_is_the_initial_state(layout):
    scratch, state = mw.training.init_state(init, TX, 7, layout), state_around({}, init, TX, 7, layout)
    jax.tree.map(np.testing.assert_array_equal, state, scratch)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, scratch)


def test_the_optimizer_knows_the_union(layout):
    keeps_params = optax.GradientTransformation(lambda params: params, lambda g, s, p=None: (g, s))
    state = state_around({"params/head": np.ones((16, 8), np.float32)}, init, keeps_params, 7, layout)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, state.params)


def test_everything_may_be_given_step_and_optimizer_state_too(layout):
    given = jax.tree.map(lambda x: x + 1, mw.training.init_state(with_statistics, TX, 7, layout))
    state = state_around(tree.named_leaves(given), with_statistics, TX, 8, layout)
    jax.tree.map(np.testing.assert_array_equal, state, given)
    assert int(state.step) == 1


def test_given_arrays_end_where_the_layout_puts_them(layout):
    state = state_around({"params/body": np.zeros((16, 8), np.float32)}, init, TX, 0, layout)
    target = mw.training.abstract_state(init, TX, layout)
    assert state.params["body"].sharding == target.params["body"].sharding


def test_arrays_of_any_sharding_and_sort_end_there_too(layout):
    on_one = jax.device_put(jnp.ones((16, 8)), jax.devices()[3])
    state = state_around({"params/body": on_one, "step": 3}, init, TX, 0, layout)
    target = mw.training.abstract_state(init, TX, layout)
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, target)
    assert (np.asarray(state.params["body"]) == 1).all()


def test_arrays_that_are_in_their_place_are_not_copied(layout):
    sharding = mw.training.abstract_state(init, TX, layout).params["body"].sharding
    body = jax.device_put(np.ones((16, 8), np.float32), sharding)
    state = state_around({"params/body": body}, init, TX, 0, layout)
    assert addresses(state.params["body"]) == addresses(body)


def test_one_array_given_twice_may_be_donated_twice(layout):
    sharding = mw.training.abstract_state(init, TX, layout).params["head"].sharding
    shared = jax.device_put(np.ones((16, 8), np.float32), sharding)
    state = state_around({"params/head": shared, "params/tail": shared}, init, TX, 0, layout)
    assert not set(addresses(state.params["head"])) & set(addresses(state.params["tail"]))
    doubled = jax.jit(lambda x: jax.tree.map(lambda x: 2 * x, x), donate_argnums=0)(state.params)
    assert (np.asarray(doubled["head"]) == 2).all()
    assert (np.asarray(doubled["tail"]) == 2).all()


def test_a_function_is_given_what_is_initialised(layout):
    given = {"params/body": lambda x: x.at[:2].set(0), "opt_state/0/count": lambda x: x + 5}
    scratch, state = mw.training.init_state(init, TX, 7, layout), state_around(given, init, TX, 7, layout)
    np.testing.assert_array_equal(state.params["body"][2:], scratch.params["body"][2:])
    assert not np.asarray(state.params["body"][:2]).any()
    assert int(state.opt_state[0].count) == 5
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, scratch)


def test_what_nobody_needs_of_init_is_not_computed(layout):
    def costly(key):
        return {**init(key), "given": jax.pure_callback(fails, jax.ShapeDtypeStruct((4,), jnp.float32))}

    def fails():
        raise AssertionError("computed")

    state = state_around({"params/given": np.ones(4, np.float32)}, costly, optax.sgd(1.0), 0, layout)
    assert (np.asarray(state.params["given"]) == 1).all()


def test_foreign_names_shapes_and_dtypes_are_listed_at_once(layout):
    given = {
        "params/haed": np.ones(3),
        "params/tail": np.ones((2, 2), np.float32),
        "params/body": np.ones((16, 8), np.int8),
        "params/head": lambda x: x[:4],
    }
    expected = r"(?s)haed.*Did you mean 'params/head'.*shape \(2, 2\).*body.*int8.*head.*found shape \(4, 8\)"
    with pytest.raises(UsageError, match=expected):
        state_around(given, init, TX, 0, layout)
