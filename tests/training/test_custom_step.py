"""A whole update that a user wrote: two networks against each other, each with an optimizer of its own."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from meshwright.errors import LayoutError, UsageError
from meshwright.parallel._copies import copy_to

LAYOUT = mw.Layout(mw.make_mesh("data=4,tensor=2"), (mw.parallel.match("w", "tensor"),))
TX = {"generator": optax.adam(1e-2), "discriminator": optax.sgd(1e-1)}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gan:
    step: jax.Array
    params: dict[str, Any]
    opt_state: dict[str, Any]


def gan():
    params = {name: {"w": jnp.ones(4)} for name in TX}
    return Gan(jnp.int32(0), params, {name: tx.init(params[name]) for name, tx in TX.items()})


def placed(state):
    return copy_to(state, LAYOUT.shardings(state))


def update(state, batch):
    """One step of the discriminator, then one of the generator against the new one."""

    def score(generator, discriminator):
        return jnp.mean(
            batch["real"] @ discriminator["w"] - (batch["noise"] * generator["w"]) @ discriminator["w"]
        )

    params, opt_state, metrics = dict(state.params), dict(state.opt_state), {}
    for player, sign in (("discriminator", -1), ("generator", 1)):
        objective = lambda own, player=player, sign=sign: sign * score(**{**params, player: own})
        loss, grads = jax.value_and_grad(objective)(params[player])
        updates, opt_state[player] = TX[player].update(grads, opt_state[player], params[player])
        params[player] = optax.apply_updates(params[player], updates)
        metrics[f"{player}_loss"] = loss
    return replace(state, step=state.step + 1, params=params, opt_state=opt_state), metrics


def batch(seed):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(8, 4)).astype(np.float32) for name in ("real", "noise")}


def test_a_state_and_an_update_of_ones_own_are_trained_by_the_same_loop():
    reports, state, expected = [], placed(gan()), gan()
    log = mw.observe.logger(lambda step, values: reports.append((step, values)), mw.engine.every(1))
    state = mw.fit(mw.training.Step(update, LAYOUT), state, map(batch, range(3)), max_steps=3, log=log)
    for i in range(3):
        expected, metrics = jax.jit(update)(expected, batch(i))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state, expected)
    np.testing.assert_allclose(reports[2][1]["generator_loss"], metrics["generator_loss"], rtol=1e-5)


def test_it_is_sharded_and_donated_and_its_metrics_packed():
    state = placed(gan())
    new, metrics = mw.training.Step(update, LAYOUT)(state, batch(0))
    assert new.opt_state["generator"][0].mu["w"].sharding.spec == P("tensor")
    assert state.params["generator"]["w"].is_deleted()
    assert len(jax.tree.leaves(metrics)) == 1
    assert list(metrics) == ["discriminator_loss", "generator_loss"]


def test_a_state_that_is_not_on_the_mesh_is_named_with_the_remedy():
    with pytest.raises(LayoutError, match="state leaf 'step' is not on the mesh"):
        mw.training.Step(update, LAYOUT)(gan(), batch(0))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda state, batch: state, r"must return \(state, metrics\)"),
        (lambda state, batch: (state, {}), "no metric"),
        (lambda state, batch: (state, {"step": 1.0}), "a metric called 'step'"),
        (lambda state, batch: (state, {"loss": batch["real"]}), r"loss must be a scalar .* shape \(8, 4\)"),
        (lambda state, batch: ({"w": state["w"] > 0}, {"loss": 0.0}), r"w was float32\[4\], is bool\[4\]"),
        (lambda state, batch: ({}, {"loss": 0.0}), r"w was float32\[4\], is missing"),
    ],
)
def test_what_a_step_may_not_return_is_told(function, says):
    with pytest.raises(UsageError, match=says):
        mw.training.Step(function, LAYOUT)(placed({"w": jnp.ones(4)}), batch(0))


def noisy(state, batch, key):
    noise = jax.random.normal(key, state.params["w"].shape)
    return state.replace(step=state.step + 1, params={"w": state.params["w"] + noise}), {"loss": noise.mean()}


def fresh():
    return mw.training.init_state(lambda key: {"w": jnp.zeros(4)}, optax.sgd(1.0), 7, LAYOUT)


def test_a_step_that_takes_a_third_argument_is_given_the_key_of_the_step():
    state = fresh()
    expected = jax.random.normal(mw.training._internal.step_key(state), (4,))
    after, _ = mw.training.Step(noisy, LAYOUT)(state, batch(0))
    np.testing.assert_allclose(after.params["w"], expected, rtol=1e-6)


def test_each_step_has_another_key_and_a_step_begun_again_the_same():
    step = mw.training.Step(noisy, LAYOUT)
    first, metrics = step(fresh(), batch(0))
    again, same = step(fresh(), batch(0))
    _, other = step(again, batch(0))
    assert float(metrics["loss"]) == float(same["loss"]) != float(other["loss"])
    assert first.step == 1


def test_a_key_for_a_state_without_a_seed_is_refused():
    step = mw.training.Step(lambda state, batch, key: (state, {"loss": 0.0}), LAYOUT)
    with pytest.raises(UsageError, match="a key as its third argument, and its state has no 'seed'"):
        step(placed(gan()), batch(0))


def test_an_argument_of_an_update_with_a_default_keeps_it():
    def update(state, batch, rate=0.5):
        return replace(state, params=jax.tree.map(lambda w: w - rate, state.params)), {"loss": 0.0}

    after, _ = mw.training.Step(update, LAYOUT)(fresh(), batch(0))
    np.testing.assert_array_equal(after.params["w"], np.full(4, -0.5, np.float32))
