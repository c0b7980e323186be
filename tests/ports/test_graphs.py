"""A graph network on packs of graphs of one size, as Flax's ogbg_molpcba example has them of jraph."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import meshwright as mw
from ports.doors import by_loss, by_trainer, close, in_order, layout_on

NODES, EDGES, GRAPHS, TASKS = 12, 20, 3, 2
TX = optax.adam(1e-2)


class Packed(NamedTuple):
    """Some graphs, and a last one for what is left of the nodes and edges, as of `jraph.pad_with_graphs`."""

    nodes: jax.Array
    edges: jax.Array
    senders: jax.Array
    receivers: jax.Array
    graph_of: jax.Array
    labels: jax.Array


def packed(rng):
    sizes = [*rng.integers(2, 5, GRAPHS - 1)]
    sizes.append(NODES - sum(sizes))
    starts = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    graph_of = np.repeat(np.arange(GRAPHS), sizes)
    senders = np.sort(rng.integers(0, NODES, EDGES))
    receivers = starts[senders] + rng.integers(0, 100, EDGES) % np.repeat(sizes, sizes)[senders]
    labels = rng.integers(0, 2, (GRAPHS, TASKS)).astype(np.float32)
    labels[rng.random(labels.shape) < 0.3] = np.nan  # what was not measured of a molecule
    labels[0], labels[-1] = 1.0, np.nan
    nodes, edges = rng.normal(size=(NODES, 4)), rng.normal(size=(EDGES, 3))
    integers = [x.astype(np.int32) for x in (senders, receivers, graph_of)]
    return Packed(nodes.astype(np.float32), edges.astype(np.float32), *integers, labels)


RNG = np.random.default_rng(0)
EXAMPLES = [packed(RNG) for _ in range(40)]
BATCHES = in_order(jax.tree.map(lambda *x: np.stack(x), *EXAMPLES))


class Net(nn.Module):
    @nn.compact
    def __call__(self, graphs):
        nodes, edges = nn.Dense(8)(graphs.nodes), nn.Dense(8)(graphs.edges)
        for _ in range(2):
            ends = [edges, nodes[graphs.senders], nodes[graphs.receivers]]
            edges = nn.relu(nn.Dense(8)(jnp.concatenate(ends, -1)))
            received = jax.ops.segment_sum(edges, graphs.receivers, NODES)
            nodes += nn.LayerNorm()(nn.relu(nn.Dense(8)(jnp.concatenate([nodes, received], -1))))
        sums = jax.ops.segment_sum(nodes, graphs.graph_of, GRAPHS)
        return nn.Dense(TASKS)(sums / jnp.bincount(graphs.graph_of, length=GRAPHS)[:, None])


NET = mw.functional(Net(), EXAMPLES[0])


@functools.cache
def initial():
    return jax.jit(Net().init)(jax.random.key(0), EXAMPLES[0])["params"]


def measured(logits, labels):
    """Return the losses of all labels, and which labels there are."""
    there = ~jnp.isnan(labels)
    losses = optax.sigmoid_binary_cross_entropy(logits, jnp.where(there, labels, 0.0))
    return losses, there


@functools.cache
def by_hand():
    @jax.jit
    def train_step(params, opt_state, batch):
        def loss_fn(params):
            logits = jax.vmap(lambda graphs: Net().apply({"params": params}, graphs))(batch)
            losses, there = measured(logits, batch.labels)
            return jnp.where(there, losses, 0.0).sum() / there.sum()

        value, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    params, opt_state, losses = initial(), jax.jit(TX.init)(initial()), []
    for batch in BATCHES:
        params, opt_state, value = train_step(params, opt_state, batch)
        losses.append(value)
    return losses, params


def loss(params, batch):
    logits = jax.vmap(functools.partial(NET.apply, params))(batch)  # over packs of graphs
    return mw.Mean.of(*measured(logits, batch.labels))


@pytest.mark.slow
def test_on_one_device_a_mean_over_the_labels_that_there_are_is_that_by_hand():
    params = initial()
    losses, state = by_loss(lambda key: params, loss, TX, BATCHES, layout_on(1))
    close((losses, state.params), by_hand())


@pytest.mark.slow
def test_on_eight_devices_each_has_graphs_of_its_own():
    losses, trainer = by_trainer(EXAMPLES, params=initial(), loss=loss, optimizer=TX)
    close((losses, trainer.params), by_hand())
