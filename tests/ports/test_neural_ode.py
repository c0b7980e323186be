"""A neural ODE that is trained in two phases, as diffrax's example: first on the beginnings, then on all."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from ports.doors import by_experiment, by_loss, close, in_order, layout_on, same

TIMES = np.linspace(0, 2, 9).astype(np.float32)
STARTS = np.random.default_rng(0).uniform(-0.6, 1, (40, 2)).astype(np.float32)
TURNS = np.stack([[[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]] for t in TIMES])
EXAMPLES = {"y": (np.exp(-0.1 * TIMES)[:, None] * np.einsum("tij,nj->nti", TURNS, STARTS)).astype(np.float32)}
PHASES = [(3, optax.adabelief(3e-3)), (len(TIMES), optax.adabelief(1e-2))]


class NeuralOde(eqx.Module):
    field: eqx.nn.MLP

    def __init__(self, key):
        self.field = eqx.nn.MLP(2, 2, 8, 1, activation=jax.nn.softplus, key=key)

    def __call__(self, ts, y0):
        """Return the solution at all times, one step of Runge and Kutta from each to the next."""

        def step(y, interval):
            start, end = interval
            with jax.ensure_compile_time_eval():  # as diffrax computes what is known while it is traced
                half = 1 / jnp.asarray(2.0)
            h = end - start
            k1 = self.field(y)
            k2 = self.field(y + half * h * k1)
            k3 = self.field(y + half * h * k2)
            k4 = self.field(y + h * k3)
            y += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return y, y

        _, ys = jax.lax.scan(step, y0, (ts[:-1], ts[1:]))
        return jnp.concatenate([y0[None], ys])


NET = mw.functional(NeuralOde)


def mean_squares(module, ys, length):
    ts, ys = TIMES[:length], ys[:, :length]
    return ((ys - jax.vmap(module, in_axes=(None, 0))(ts, ys[:, 0])) ** 2).mean()


def loss(length):
    return lambda params, batch: mean_squares(NET.bind(params), batch["y"], length)


@functools.cache
def by_hand():
    """The original, which begins each phase with a new state of the optimizer."""
    module = NeuralOde(mw.training.key_of(0))
    losses = []
    for length, tx in PHASES:
        opt_state = jax.jit(tx.init)(eqx.filter(module, eqx.is_inexact_array))

        @eqx.filter_jit
        def make_step(module, opt_state, ys, length=length, tx=tx):
            value, grads = eqx.filter_value_and_grad(mean_squares)(module, ys, length)
            updates, opt_state = tx.update(grads, opt_state)
            return eqx.apply_updates(module, updates), opt_state, value

        for batch in in_order(EXAMPLES):
            module, opt_state, value = make_step(module, opt_state, batch["y"])
            losses.append(value)
    return losses, eqx.filter(module, eqx.is_inexact_array)


@pytest.mark.slow
def test_on_one_device_both_phases_are_those_by_hand():
    losses, init = [], NET.init
    for length, tx in PHASES:
        more, state = by_loss(init, loss(length), tx, in_order(EXAMPLES), layout_on(1))
        losses, init = losses + more, lambda key, state=state: state.params
    same((losses, state.params), by_hand())


def test_on_eight_devices_the_second_experiment_begins_with_the_parameters_of_the_first(tmp_path):
    losses, builder = [], None
    for number, (length, tx) in enumerate(PHASES):
        described = {"model": NET, "loss": loss(length), "optimizer": tx, "init_state_builder": builder}
        more, state = by_experiment(tmp_path / str(number), EXAMPLES, rules=None, **described)
        losses, builder = (
            losses + more,
            mw.engine.from_checkpoint(str(tmp_path / str(number) / "checkpoints")),
        )
    close((losses, state.params), by_hand())
