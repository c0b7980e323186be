import jax
import jax.numpy as jnp
import optax
import optax.contrib
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.parallel._layout import opt_state_shardings

PARAMS = {"layer": {"w": jnp.ones((256, 128)), "b": jnp.ones(128)}, "w": jnp.ones((128, 256))}


def specs(mesh, tx, params=PARAMS):
    layout = mw.Layout(
        mesh, (mw.parallel.match("layer/w", "fsdp", "tensor"), mw.parallel.match("w", None, "fsdp"))
    )
    state = jax.eval_shape(tx.init, params)
    placed = opt_state_shardings(state, params, layout.shardings(params))
    return {name: sharding.spec for name, sharding in mw.base._internal.named_leaves(placed).items()}


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


SQUARES = {"w": jnp.ones((256, 256)), "layers": jnp.ones((3, 256, 256))}


def square_specs(mesh, tx):
    layout = mw.Layout(
        mesh, (mw.parallel.match("w", "fsdp", "tensor"), mw.parallel.match("layers", None, "fsdp", "tensor"))
    )
    state = jax.eval_shape(tx.init, SQUARES)
    placed = opt_state_shardings(state, SQUARES, layout.shardings(SQUARES))
    return {name: sharding.spec for name, sharding in mw.base._internal.named_leaves(placed).items()}


def test_the_factors_of_a_square_are_told_apart(mesh):
    found = square_specs(mesh, optax.scale_by_factored_rms())
    assert (found["v_row/w"], found["v_col/w"]) == (P("fsdp"), P("tensor"))
    assert (found["v_row/layers"], found["v_col/layers"]) == (P(None, "fsdp"), P(None, "tensor"))


def test_stacked_copies_of_a_parameter_are_split_as_it_is(mesh):
    found = square_specs(mesh, optax.scale_by_lbfgs())
    assert found["diff_params_memory/w"] == P(None, "fsdp", "tensor")
    assert found["weights_memory"] == P()


@pytest.mark.parametrize(
    "tx",
    [
        optax.adamw(1e-3),
        optax.adafactor(1e-3, momentum=0.9),
        optax.lion(1e-3),
        optax.contrib.muon(1e-3),
        optax.MultiSteps(optax.adamw(1e-3), 2),
        optax.masked(optax.adamw(1e-3), {"w": True, "layers": False}),
        optax.multi_transform(
            {"a": optax.adamw(1e-3), "f": optax.adafactor(1e-3)}, {"w": "a", "layers": "f"}
        ),
        optax.contrib.schedule_free_adamw(1e-3),
    ],
    ids=["adamw", "adafactor", "lion", "muon", "multi_steps", "masked", "multi_transform", "schedule_free"],
)
def test_whatever_an_optimizer_keeps_of_large_arrays_is_split(mesh, tx):
    state = mw.base._internal.named_leaves(jax.eval_shape(tx.init, SQUARES))
    found = square_specs(mesh, tx)
    large = [name for name, x in state.items() if x.size > 16]
    assert large
    assert all(found[name] != P() for name in large)


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
    layout = mw.Layout(mesh, (mw.parallel.match("layer/w", "fsdp", "tensor"),))
    state = mw.training.init_state(lambda key: jax.tree.map(jnp.copy, PARAMS), tx, 0, layout)
    step = mw.make_step(
        lambda p, batch, key: (p["w"] ** 2).mean() + (p["layer"]["w"] ** 2).mean(), tx, layout
    )
    state, metrics = step(state, jnp.ones(8))
    assert int(state.step) == 1
    assert jnp.isfinite(metrics["loss"].value)


def test_a_parameter_tree_that_is_one_array_is_followed_too(mesh):
    layout = mw.Layout(mesh, (mw.parallel.match(".*", "fsdp"),))
    state = mw.training.abstract_state(lambda key: jnp.ones((8, 8)), optax.adam(1e-3), layout)
    assert state.params.sharding.spec == P("fsdp")
    assert state.opt_state[0].mu.sharding.spec == P("fsdp")
