"""Two towers with the sigmoid loss over all pairs of a batch, as big_vision trains SigLIP."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import meshwright as mw
from ports.doors import by_loss, by_trainer, close, in_order, layout_on, same

RNG = np.random.default_rng(0)
EXAMPLES = {
    "image": RNG.normal(size=(48, 4, 4, 3)).astype(np.float32),
    "text": RNG.integers(0, 32, (48, 6)).astype(np.int32),
}
TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2, b2=0.95, weight_decay=1e-4))


def unit(x):
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)


class TwoTowers(nn.Module):
    @nn.compact
    def __call__(self, image, text):
        patches = nn.Conv(16, (2, 2), strides=2, name="patches")(image)
        images = unit(nn.Dense(8, name="image")(nn.gelu(patches).reshape(len(image), -1, 16).mean(1)))
        texts = unit(nn.Dense(8, name="text")(nn.Embed(32, 16, name="tokens")(text).max(1)))
        temperature = self.param("t", nn.initializers.constant(np.log(10.0)), (1,))
        return images, texts, jnp.exp(temperature), self.param("b", nn.initializers.constant(-10.0), (1,))


def sigmoid_loss(images, texts, temperature, bias):
    logits = images @ texts.T * temperature + bias
    signs = 2 * jnp.eye(len(logits)) - 1  # each image has one text, and all other texts are negatives
    return -jax.nn.log_sigmoid(signs * logits).sum(-1).mean()


NET = mw.functional(TwoTowers(), EXAMPLES["image"][:1], EXAMPLES["text"][:1])


@functools.cache
def initial():
    return jax.jit(TwoTowers().init)(jax.random.key(0), EXAMPLES["image"][:1], EXAMPLES["text"][:1])["params"]


def loss(model, batch):
    return sigmoid_loss(*model(batch["image"], batch["text"]))


@functools.cache
def by_hand():
    def update_fn(params, opt_state, batch):
        def loss_fn(params):
            return sigmoid_loss(*TwoTowers().apply({"params": params}, batch["image"], batch["text"]))

        value, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    update, params, opt_state, losses = jax.jit(update_fn), initial(), jax.jit(TX.init)(initial()), []
    for batch in in_order(EXAMPLES):
        params, opt_state, value = update(params, opt_state, batch)
        losses.append(value)
    return losses, params


def of_params(params, batch):
    return loss(functools.partial(NET.apply, params), batch)


@pytest.mark.slow
def test_on_one_device_the_loss_over_all_pairs_moves_as_by_hand():
    params = initial()
    losses, state = by_loss(lambda key: params, of_params, TX, in_order(EXAMPLES), layout_on(1))
    same((losses, state.params), by_hand())


def test_on_eight_devices_each_row_still_meets_all_others():
    losses, trainer = by_trainer(EXAMPLES, model=NET, params=initial(), loss=loss, optimizer=TX)
    close((losses, trainer.params), by_hand())
