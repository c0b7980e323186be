import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.sharding import beside_params

PARAMS = {"layer": {"w": jnp.ones((256, 128)), "b": jnp.ones(128)}, "w": jnp.ones((128, 256))}


def specs(mesh, tx, params=PARAMS):
    layout = mw.Layout(mesh, (mw.match("layer/w", "fsdp", "tensor"), mw.match("w", None, "fsdp")))
    state = jax.eval_shape(tx.init, params)
    placed = beside_params(state, params, layout.shardings(params))
    return {name: sharding.spec for name, sharding in mw.tree.named_leaves(placed).items()}


def test_moments_lie_where_their_parameters_do(mesh):
    found = specs(mesh, optax.adam(1e-3))
    for moment in ("mu", "nu"):
        assert found[f"0/{moment}/layer/w"] == P("fsdp", "tensor")
        assert found[f"0/{moment}/w"] == P(None, "fsdp")
        assert found[f"0/{moment}/layer/b"] == P()
    assert found["0/count"] == P()


def test_factored_moments_keep_what_is_left_of_the_spec(mesh):
    found = specs(mesh, optax.scale_by_factored_rms())
    assert found["v_row/layer/w"] == P("tensor")
    assert found["v_col/layer/w"] == P("fsdp")
    assert found["v/layer/b"] == P()


@pytest.mark.parametrize(
    "tx",
    [
        optax.adafactor(1e-3),
        optax.lion(1e-3),
        optax.MultiSteps(optax.adam(1e-3), 2),
        optax.masked(optax.adam(1e-3), {"layer": {"w": True, "b": False}, "w": True}),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
    ],
    ids=["adafactor", "lion", "multi_steps", "masked", "chain"],
)
def test_any_optimizer_steps_with_its_state_placed_so(mesh, tx):
    layout = mw.Layout(mesh, (mw.match("layer/w", "fsdp", "tensor"),))
    state = mw.init_state(lambda key: jax.tree.map(jnp.copy, PARAMS), tx, 0, layout)
    step = mw.make_step(
        lambda p, batch, key: (p["w"] ** 2).mean() + (p["layer"]["w"] ** 2).mean(), tx, layout
    )
    state, metrics = step(state, jnp.ones(8))
    assert int(state.step) == 1
    assert jnp.isfinite(metrics["loss"].value)


def test_a_parameter_tree_that_is_one_array_is_followed_too(mesh):
    layout = mw.Layout(mesh, (mw.match(".*", "fsdp"),))
    state = mw.abstract_state(lambda key: jnp.ones((8, 8)), optax.adam(1e-3), layout)
    assert state.params.sharding.spec == P("fsdp")
    assert state.opt_state[0].mu.sharding.spec == P("fsdp")
