"""Optimizers put together: the numbers, to the last place, of one that can be computed by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import UsageError

LAYOUT = mw.Layout(mw.make_mesh("data=2,fsdp=4"), (mw.parallel.match("w", "fsdp"),))
START = {"w": np.float32([1, 1, 1, 1]), "b": np.float32([2])}
SLOPE = {"w": np.float32([2, 2, 2, 2]), "b": np.float32([3])}
"""The gradient, whatever the parameters: its norm is 5."""


def loss(params, batch, key):
    slopes = jax.tree.map(lambda slope, x: jnp.sum(slope * x), SLOPE, params)
    return sum(jax.tree.leaves(slopes)) * batch["scale"].mean()


def trained(tx, scales=(1.0,), **more):
    state, step = (
        mw.training.state_from(START, tx, 0, LAYOUT),
        mw.make_step(loss, tx, LAYOUT, microbatches=2, **more),
    )
    for scale in scales:
        state, metrics = step(state, {"scale": np.full(16, scale, np.float32)})
    return state, metrics


def assert_close(found, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], np.broadcast_to(value, found[name].shape), rtol=1e-6)


def test_descent_after_a_clip_and_its_average_are_the_numbers_of_a_calculation_by_hand():
    tx = optax.chain(
        optax.clip_by_global_norm(1.0), optax.sgd(0.1), mw.training.keep_ema(0.5, bias_correction=False)
    )
    state, metrics = trained(tx, scales=(1.0, 1.0))
    assert_close(state.params, w=1 - 2 * 0.1 * 2 / 5, b=2 - 2 * 0.1 * 3 / 5)
    assert_close(mw.training.ema_params(state), w=1 - 0.04 / 4 - 0.08 / 2, b=2 - 0.06 / 4 - 0.12 / 2)
    assert float(metrics["grad_norm"].value) == pytest.approx(5)
    assert state.opt_state[2].ema["w"].sharding.spec == state.params["w"].sharding.spec == P("fsdp")


@pytest.mark.parametrize("rule", ["none", "optimizer", "state", "all"])
@pytest.mark.parametrize(("name", "other"), [("w", "b"), ("b", "w")])
@pytest.mark.daily(4)
def test_what_is_excluded_has_no_gradient_and_no_place_in_the_optimizer(name, other, rule):
    tx = mw.training.update_rules([(name, rule)], optax.sgd(0.1, momentum=0.9))
    state, metrics = trained(tx)
    moved = {"w", "b"} if rule in ("optimizer", "all") else {other}
    assert_close(state.params, **{x: START[x] - 0.1 * SLOPE[x] * (x in moved) for x in START})
    assert set(mw.parallel.leaf_names(state.opt_state[0].trace)) == moved
    norms = [np.linalg.norm(SLOPE[x]) for x in moved]
    assert float(metrics["grad_norm"].value) == pytest.approx(np.linalg.norm(norms))


def test_norms_are_those_of_the_parameters_before_the_update_and_of_their_gradients():
    _, metrics = trained(optax.chain(optax.clip(0.1), optax.sgd(0.1)), norms=".*")
    found = {name: float(mean.value) for name, mean in metrics.items() if "norm/" in name}
    assert found == {"param_norm/w": 2, "param_norm/b": 2, "grad_norm/w": 4, "grad_norm/b": 3}


def test_norms_are_told_of_what_a_pattern_matches_and_is_trained():
    assert "grad_norm/b" not in trained(optax.sgd(0.1), norms="w")[1]
    with pytest.raises(UsageError, match=r"^norms: 'w' matches no name; there are params/b\."):
        trained(mw.training.Trainable("b", optax.sgd(0.1)), norms="w")


@pytest.mark.parametrize(
    ("tx", "is_told"),
    [
        (optax.stateless(lambda grads, _: {"w": grads["w"]}), r"params/b was float32\[1\], is missing"),
        (optax.stateless(lambda grads, _: jax.tree.map(jnp.sum, grads)), r"params/b was .*; params/w was "),
    ],
)
def test_updates_of_another_shape_or_structure_than_the_parameters_are_told(tx, is_told):
    with pytest.raises(UsageError, match=rf"shapes of the parameters: {is_told}(.|\n)*single examples"):
        trained(tx)


@pytest.mark.parametrize(
    "tx",
    [
        optax.polyak_sgd(0.1),
        optax.contrib.momo_adam(0.1),
        mw.training.skip_exploding(
            optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(0.5, patience=1))
        ),
        mw.training.by_path([("w", optax.polyak_sgd(0.1)), ("b", optax.sgd(0.1))]),
    ],
    ids=["polyak", "momo", "plateau", "by_path"],
)
def test_an_optimizer_that_needs_the_loss_gets_that_of_the_whole_batch(tx):
    """Rows of weight 0 make the pieces of the batch count differently."""
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(32, 4)).astype(np.float32), "weight": np.float32(rng.random(32) < 0.5)}

    def of(params, batch):
        errors = (batch["x"] @ params["w"] + params["b"] - 1) ** 2
        return mw.Mean.of(errors, batch["weight"])

    params, by_hand = START, tx.init(START)
    state, step = mw.training.state_from(START, tx, 0, LAYOUT), mw.make_step(of, tx, LAYOUT, microbatches=4)
    for _ in range(4):
        value, grads = jax.value_and_grad(lambda params: of(params, batch).value)(params)
        updates, by_hand = tx.update(grads, by_hand, params, value=value, grad=grads)
        params = optax.apply_updates(params, updates)
        state, _ = step(state, batch)
    for name, x in params.items():
        np.testing.assert_allclose(state.params[name], x, rtol=1e-5)


@pytest.mark.parametrize(
    ("tx", "name"),
    [
        (optax.lbfgs(), "zoom_linesearch.*'value_fn'"),
        (optax.contrib.sophia(0.1), "obj_fn must"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), "lookahead"),
        (optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1), opaque_mode=True), "grad_fn must"),
    ],
    ids=["lbfgs", "sophia", "lookahead", "sam"],
)
def test_an_optimizer_that_needs_the_loss_as_a_function_is_refused_with_what_to_write(tx, name):
    with pytest.raises(UsageError, match=rf"asks for more than .*{name}(.|\n)*mw.Trainer\(train_step="):
        trained(tx)


class Net(eqx.Module):
    w: jax.Array
    b: jax.Array

    def __call__(self, x):
        return x @ self.w + self.b


_NET = Net(jnp.ones(4), jnp.ones(1))
_MASK = jax.tree.map(lambda x: x.size > 1, _NET)


@pytest.mark.parametrize(
    "tx",
    [
        optax.adamw(0.1, mask=_MASK),
        optax.masked(optax.sgd(0.1), _MASK),
        optax.chain(optax.clip(1.0), optax.add_decayed_weights(0.1, _MASK)),
        optax.multi_transform(
            {"a": optax.sgd(0.1), "b": optax.set_to_zero()},
            jax.tree.map(lambda x: "a" if x.size > 1 else "b", _NET),
        ),
    ],
)
def test_masks_and_labels_as_a_module_are_refused_with_what_to_write(tx):
    is_told = (
        r"are a Net, but the parameters are a dict of arrays by name: b, w\.\n.*lambda params: .*by_path"
    )
    with pytest.raises(UsageError, match=is_told):
        trained(tx)


def test_a_gradient_that_is_too_large_may_be_dropped_and_the_optimizer_still_run():
    """A guard around nothing gives a gradient of zeros to what follows it."""
    tx = optax.chain(mw.training.skip_exploding(optax.identity(), 10.0), optax.sgd(0.1, momentum=0.5))
    state, metrics = trained(tx, scales=(1.0, 99.0))
    assert_close(state.opt_state[1][0].trace, w=SLOPE["w"] / 2, b=SLOPE["b"] / 2)
    assert_close(state.params, w=1 - 0.1 * 2 * 1.5, b=2 - 0.1 * 3 * 1.5)
    assert metrics["skipped"].value == 1


def test_a_guard_of_some_parameters_hides_no_divergence_of_the_others():
    tx = mw.training.by_path([("w", mw.training.skip_exploding(optax.sgd(0.1))), (".*", optax.sgd(0.1))])
    state, metrics = trained(tx, scales=(np.nan, 1.0))
    assert_close(state.params, w=1 - 0.1 * 2)
    assert np.isnan(state.params["b"])
    assert np.isnan(metrics["loss"].value)


def test_an_average_over_several_optimizers_is_of_all_parameters():
    tx = optax.chain(
        mw.training.by_path([("w", optax.sgd(0.1)), ("b", optax.adamw(0.01))]), mw.training.keep_ema(0.5)
    )
    state, _ = trained(tx, scales=(1.0, 1.0))
    assert mw.parallel.leaf_names(state.opt_state[1].ema) == ["b", "w"]
    assert mw.parallel.leaf_names(state.opt_state[0].inner_states["1"].inner_state[0].mu) == ["b"]
    assert_close(mw.training.ema_params(state), w=((1 - 0.2) + 2 * (1 - 0.4)) / 3)


def mapped(tx):
    """`tx` for each of the layers that lie stacked along the first dimension."""
    update = lambda updates, state, params: jax.vmap(tx.update)(updates, state, params)
    return optax.GradientTransformation(jax.vmap(tx.init), update)


def test_an_optimizer_mapped_over_stacked_layers_treats_each_as_its_own():
    tx = optax.adafactor(0.1, min_dim_size_to_factor=2)
    w = np.random.default_rng(0).normal(size=(4, 8, 4)).astype(np.float32)
    of = lambda params, batch, key: ((batch["x"] @ params["w"]) ** 2).mean(-2).sum()
    batch = {"x": np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)}

    def after(params, tx):
        state, step = mw.training.state_from(params, tx, 0, LAYOUT), mw.make_step(of, tx, LAYOUT)
        return step(state, batch)[0].params["w"]

    alone = [after({"w": layer}, tx) for layer in w]
    together = after({"w": w}, mw.training.by_path([("w", mapped(tx))]))
    np.testing.assert_allclose(together, np.stack(alone), rtol=1e-5)
