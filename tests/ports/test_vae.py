"""A variational autoencoder in Flax NNX, as the JAX AI stack teaches it on digits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import meshwright as mw
from ports.doors import by_loss, by_trainer, close, in_order, layout_on, same

EXAMPLES = {"image": (np.random.default_rng(0).random((40, 16)) > 0.5).astype(np.float32)}
TX = optax.adam(1e-2)


class Encoder(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(16, 32, rngs=rngs)
        self.mean, self.std = nnx.Linear(32, 4, rngs=rngs), nnx.Linear(32, 4, rngs=rngs)

    def __call__(self, x, key):
        x = jax.nn.relu(self.linear(x))
        mean, std = self.mean(x), jnp.exp(self.std(x))
        divergence = jnp.mean(0.5 * jnp.mean(-jnp.log(std**2) - 1.0 + std**2 + mean**2, axis=-1))
        return mean + std * jax.random.normal(key, mean.shape), divergence


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.inner, self.outer = nnx.Linear(4, 32, rngs=rngs), nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, z):
        return self.outer(jax.nn.relu(self.inner(z)))


class Vae(nnx.Module):
    def __init__(self, rngs):
        self.encoder, self.decoder = Encoder(rngs), Decoder(rngs)

    def __call__(self, x, noise):
        z, divergence = self.encoder(x, noise)
        return self.decoder(z), divergence


def loss(model, batch, key):
    logits, divergence = model(batch["image"], key)
    return optax.sigmoid_binary_cross_entropy(logits, batch["image"]).mean() + 0.1 * divergence


@functools.cache
def by_hand():
    """The original with NNX's optimizer, which draws as the first microbatch of each step does."""
    model = Vae(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, batch, step):
        key = jax.random.fold_in(jax.random.fold_in(mw.training.key_of(0), step), 0)
        value, grads = nnx.value_and_grad(loss)(model, batch, key)
        optimizer.update(model, grads)
        return value

    losses = [train_step(model, optimizer, batch, step) for step, batch in enumerate(in_order(EXAMPLES))]
    return losses, nnx.to_pure_dict(nnx.state(model, nnx.Param))


@pytest.mark.slow
def test_on_one_device_noise_and_parameters_are_those_of_the_loop_by_hand():
    net = mw.functional(Vae(nnx.Rngs(0)))
    of_params = lambda params, batch, key: loss(functools.partial(net.apply, params), batch, key)
    losses, state = by_loss(net.init, of_params, TX, in_order(EXAMPLES), layout_on(1))
    same((losses, state.params), by_hand())


def test_on_eight_devices_the_module_that_exists_trains_on_from_its_values():
    losses, trainer = by_trainer(EXAMPLES, model=Vae(nnx.Rngs(0)), loss=loss, optimizer=TX)
    close((losses, trainer.params), by_hand())
