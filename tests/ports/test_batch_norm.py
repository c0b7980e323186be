"""A residual network with batch normalisation, as Flax's imagenet example trains it by pmap."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import linen as nn

import meshwright as mw
from ports.doors import by_loss, by_trainer, close, in_order, layout_on, same

RNG = np.random.default_rng(0)
EXAMPLES = {
    "image": RNG.normal(size=(48, 4, 4, 3)).astype(np.float32),
    "label": RNG.integers(0, 4, 48).astype(np.int32),
}
TX = optax.sgd(optax.cosine_decay_schedule(0.1, 6), momentum=0.9, nesterov=True)


class ResNet(nn.Module):
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train=True):
        conv = functools.partial(nn.Conv, 8, (3, 3), use_bias=False)
        norm = functools.partial(nn.BatchNorm, not train, momentum=0.9, axis_name=self.axis_name)
        x = nn.relu(norm()(conv()(x)))
        x = nn.relu(x + norm(scale_init=nn.initializers.constant(0.1))(conv()(x)))
        return nn.Dense(4)(x.mean((1, 2)))


NET = mw.functional(ResNet(), EXAMPLES["image"][:1])


@functools.cache
def initial():
    variables = jax.jit(ResNet().init)(jax.random.key(0), EXAMPLES["image"][:1])
    return {"params": variables["params"], "model_state": variables["batch_stats"]}


def decayed(params):
    return 1e-3 * 0.5 * sum((x**2).sum() for x in jax.tree.leaves(params) if x.ndim > 1)


def loss(params, batch, key, model_state):
    logits, model_state = NET.apply(params, batch["image"], model_state=model_state, key=key, train=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean() + decayed(params), {}, model_state


def train_step(state, batch, axis_name=None):
    """One update of the original, on one of the devices that `axis_name` names."""
    params, batch_stats, opt_state = state

    def loss_fn(params):
        variables = {"params": params, "batch_stats": batch_stats}
        logits, new = ResNet(axis_name).apply(variables, batch["image"], mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return losses.mean() + decayed(params), new["batch_stats"]

    (value, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    if axis_name:
        value, grads = jax.lax.pmean((value, grads), axis_name)
    updates, opt_state = TX.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), batch_stats, opt_state), value


def by_hand(step, batches):
    params, batch_stats = initial().values()
    state, losses = (params, batch_stats, jax.jit(TX.init)(params)), []
    for batch in batches:
        state, value = step(state, batch)
        losses.append(value)
    return losses, state[:2]


def mapped(state, batch):
    """The original by pmap, which vmap computes alike: a row of the batch on each device."""
    step = jax.vmap(functools.partial(train_step, axis_name="batch"), (None, 0), axis_name="batch")
    state, values = step(state, jax.tree.map(lambda x: x[:, None], batch))
    return jax.tree.map(lambda x: x[0], (state, values))


@pytest.mark.slow
def test_on_one_device_parameters_and_statistics_move_as_by_hand():
    variables = mw.training.Variables(**initial())
    losses, state = by_loss(lambda key: variables, loss, TX, in_order(EXAMPLES), layout_on(1))
    same((losses, (state.params, state.model_state)), by_hand(jax.jit(train_step), in_order(EXAMPLES)))


def test_on_eight_devices_it_is_the_program_that_names_the_axis_of_pmap():
    losses, trainer = by_trainer(EXAMPLES, model=NET, loss=loss, optimizer=TX, **initial())
    theirs = by_hand(jax.jit(mapped), in_order(EXAMPLES))
    close((losses, (trainer.params, trainer.model_state)), theirs, atol=1e-5)
