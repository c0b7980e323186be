"""Two networks against each other, each with batch normalisation and an Adam, as Equinox's DCGAN example."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import meshwright as mw
from ports.doors import ROWS, by_step, by_trainer, close, in_order, layout_on, same

EXAMPLES = {"image": np.random.default_rng(0).normal(size=(40, 1, 4, 4)).astype(np.float32)}
ADAM = optax.adam(1e-2, b1=0.5, b2=0.999)


class Generator(eqx.Module):
    grow: eqx.nn.ConvTranspose2d
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Conv2d

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.grow = eqx.nn.ConvTranspose2d(2, 4, 4, use_bias=False, key=first)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.out = eqx.nn.Conv2d(4, 1, 3, padding=1, key=second)

    def __call__(self, noise, state):
        x, state = self.norm(self.grow(noise), state)
        return jnp.tanh(self.out(jax.nn.relu(x))), state


class Discriminator(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, use_bias=False, key=first)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.out = eqx.nn.Linear(16, 1, key=second)

    def __call__(self, image, state):
        x, state = self.norm(self.conv(image), state)
        return self.out(jax.nn.leaky_relu(x, 0.2).ravel()), state


def mapped(module, x, state):
    return jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def cross_entropy(logits, label):
    return optax.sigmoid_binary_cross_entropy(logits, jnp.full_like(logits, label)).mean()


def discriminator_loss(discriminator, generator, noise, real, states):
    fake, generator_state = mapped(generator, noise, states["generator"])
    of_fake, state = mapped(discriminator, fake, states["discriminator"])
    of_real, state = mapped(discriminator, real, state)
    value = (cross_entropy(of_fake, 0.0) + cross_entropy(of_real, 1.0)) / 2
    return value, {"generator": generator_state, "discriminator": state}


def generator_loss(generator, discriminator, noise, states):
    fake, generator_state = mapped(generator, noise, states["generator"])
    logits, state = mapped(discriminator, fake, states["discriminator"])
    return cross_entropy(logits, 1.0), {"generator": generator_state, "discriminator": state}


MADE, MADE_STATE = eqx.nn.make_with_state(Generator)(jax.random.key(1))
JUDGE, JUDGE_STATE = eqx.nn.make_with_state(Discriminator)(jax.random.key(2))
MODULES = {"generator": MADE, "discriminator": JUDGE}
STATES = {"generator": MADE_STATE, "discriminator": JUDGE_STATE}
PARAMS, STATIC = eqx.partition(MODULES, eqx.is_inexact_array)
KEY = jax.random.key(3)


def drawn(key):
    key, noise_key = jax.random.split(key)  # a chain of keys, as the original has
    return key, jax.random.normal(noise_key, (ROWS, 2, 1, 1))


@eqx.filter_jit
def original(generator, discriminator, states, opt_states, image, key):
    """Make an update of the discriminator, then one of the generator against the new one."""
    key, noise = drawn(key)
    graded = eqx.filter_value_and_grad(discriminator_loss, has_aux=True)
    (judged, states), grads = graded(discriminator, generator, noise, image, states)
    updates, judge_opt = ADAM.update(grads, opt_states["discriminator"])
    discriminator = eqx.apply_updates(discriminator, updates)
    graded = eqx.filter_value_and_grad(generator_loss, has_aux=True)
    (made, states), grads = graded(generator, discriminator, noise, states)
    updates, made_opt = ADAM.update(grads, opt_states["generator"])
    generator = eqx.apply_updates(generator, updates)
    opt_states = {"generator": made_opt, "discriminator": judge_opt}
    return generator, discriminator, states, opt_states, key, made + judged


@functools.cache
def by_hand():
    generator, discriminator, states, key = MADE, JUDGE, STATES, KEY
    opt_states = {name: jax.jit(ADAM.init)(params) for name, params in PARAMS.items()}
    losses = []
    for batch in in_order(EXAMPLES):
        generator, discriminator, states, opt_states, key, value = original(
            generator, discriminator, states, opt_states, batch["image"], key
        )
        losses.append(value)
    modules = {"generator": generator, "discriminator": discriminator}
    return losses, (eqx.filter(modules, eqx.is_inexact_array), states, jax.random.key_data(key))


TX = optax.GradientTransformation(
    lambda params: {player: ADAM.init(params[player]) for player in params}, ADAM.update
)
"""The states of two Adams: the update below takes one after the other."""


def train_step(state, batch):
    """Make the same update, of a state in which the layers' states and the key are the model's."""
    key, noise = drawn(state.model_state["key"])
    params, opt_state, states = dict(state.params), dict(state.opt_state), state.model_state["states"]
    module = lambda player, arrays: eqx.combine(arrays, STATIC[player])

    def judged(own, states):
        generator = module("generator", params["generator"])
        return discriminator_loss(module("discriminator", own), generator, noise, batch["image"], states)

    def made(own, states):
        discriminator = module("discriminator", params["discriminator"])
        return generator_loss(module("generator", own), discriminator, noise, states)

    losses = {}
    for player, loss in [("discriminator", judged), ("generator", made)]:
        grad = jax.value_and_grad(loss, has_aux=True)
        (losses[player], states), grads = grad(params[player], states)
        updates, opt_state[player] = ADAM.update(grads, opt_state[player])
        params[player] = optax.apply_updates(params[player], updates)
    model_state = {"states": states, "key": key}
    new = state.replace(step=state.step + 1, params=params, opt_state=opt_state, model_state=model_state)
    return new, {"loss": losses["generator"] + losses["discriminator"]}


def trained(params, model_state):
    return params, model_state["states"], jax.random.key_data(model_state["key"])


@pytest.mark.slow
def test_on_one_device_two_updates_in_a_step_are_those_by_hand():
    layout = layout_on(1)
    init = lambda key: mw.training.Variables(PARAMS, {"states": STATES, "key": KEY})
    losses, state = by_step(init, mw.training.Step(train_step, layout), TX, in_order(EXAMPLES), layout)
    same((losses, trained(state.params, state.model_state)), by_hand())


@pytest.mark.slow
def test_on_eight_devices_a_trainer_takes_the_update_and_the_chain_of_keys():
    given = {"params": PARAMS, "model_state": {"states": STATES, "key": KEY}, "optimizer": TX}
    losses, trainer = by_trainer(EXAMPLES, train_step=train_step, **given)
    close((losses, trained(trainer.params, trainer.model_state)), by_hand())
