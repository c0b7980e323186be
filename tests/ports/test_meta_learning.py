"""Learning a learning rate by gradients through the steps of another optimizer, as optax's example does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ports.doors import by_loss, close, layout_on, same

RNG = np.random.default_rng(0)
INNER, DIMENSIONS = 4, 2
META = optax.adam(0.03)


def task():
    """Rows of a linear problem for some steps of the inner optimizer; the last are to validate."""
    x = RNG.normal(size=(INNER + 1, 8, DIMENSIONS)).astype(np.float32)
    return {"x": x, "y": (x @ np.array([1.0, -2.0])).astype(np.float32)}


TASKS = [task() for _ in range(6)]
INITIAL = {"logit": jnp.zeros(())}


def squared(weights, rows):
    return ((rows["x"] @ weights - rows["y"]) ** 2).mean()


def loss(meta, task):
    """Return the loss after some inner steps, which the learning rate is to make small."""
    inner = optax.inject_hyperparams(optax.sgd)(learning_rate=jax.nn.sigmoid(meta["logit"]))
    weights = jnp.zeros(DIMENSIONS)
    state = inner.init(weights)
    for i in range(INNER):
        grads = jax.grad(squared)(weights, jax.tree.map(lambda x, i=i: x[i], task))
        updates, state = inner.update(grads, state)
        weights = optax.apply_updates(weights, updates)
    return squared(weights, jax.tree.map(lambda x: x[-1], task))


@functools.cache
def by_hand():
    @jax.jit
    def outer_step(meta, opt_state, task):
        value, grads = jax.value_and_grad(loss)(meta, task)
        updates, opt_state = META.update(grads, opt_state)
        return optax.apply_updates(meta, updates), opt_state, value

    meta, opt_state, losses = INITIAL, jax.jit(META.init)(INITIAL), []
    for task in TASKS:
        meta, opt_state, value = outer_step(meta, opt_state, task)
        losses.append(value)
    return losses, meta


def test_on_one_device_the_learning_rate_moves_as_by_hand():
    losses, state = by_loss(lambda key: INITIAL, loss, META, TASKS, layout_on(1))
    same((losses, state.params), by_hand())


def test_on_eight_devices_each_computes_the_whole_task():
    losses, state = by_loss(lambda key: INITIAL, loss, META, TASKS, layout_on(8, batch_axis_names=()))
    close((losses, state.params), by_hand())
