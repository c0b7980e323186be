"""A language model of packed rows whose parameters have logical names, as Flax's lm1b example has them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import meshwright as mw
from ports.doors import by_experiment, by_loss, close, in_order, layout_on

RNG = np.random.default_rng(0)
LENGTH, VOCABULARY = 8, 32
SEGMENTS = np.sort(RNG.integers(1, 4, (40, LENGTH)), axis=1).astype(np.int32)
SEGMENTS[:, -1] *= RNG.integers(0, 2, 40)  # some rows end with padding, which is segment 0
EXAMPLES = {
    "tokens": RNG.integers(1, VOCABULARY, (40, LENGTH)).astype(np.int32),
    "segments": SEGMENTS,
    "positions": np.stack([np.arange(LENGTH) - np.searchsorted(row, row) for row in SEGMENTS]).astype(
        np.int32
    ),
}
TX = optax.adamw(optax.warmup_constant_schedule(0.0, 1e-2, 3), b2=0.98, eps=1e-6, weight_decay=0.1)


def named(*names):
    return nn.with_logical_partitioning(nn.initializers.xavier_uniform(), names)


class Lm(nn.Module):
    @nn.compact
    def __call__(self, tokens, segments, positions):
        x = nn.Embed(VOCABULARY, 16, embedding_init=named("vocab", "embed"))(tokens)
        x += nn.Embed(LENGTH, 16)(positions)
        mask = nn.combine_masks(
            nn.make_causal_mask(tokens), nn.make_attention_mask(segments, segments, jnp.equal)
        )
        heads = nn.MultiHeadDotProductAttention(
            num_heads=4,
            use_bias=False,
            kernel_init=named("embed", "kv"),  # two names, and Flax makes kernels of three dimensions
        )
        x += heads(nn.LayerNorm()(x), mask=mask)
        inner = nn.relu(nn.Dense(32, kernel_init=named("embed", "mlp"))(nn.LayerNorm()(x)))
        x += nn.Dense(16, kernel_init=named("mlp", "embed"))(inner)
        return nn.Dense(VOCABULARY, kernel_init=named("embed", "vocab"))(nn.LayerNorm()(x))


ROW = [x[:1] for x in EXAMPLES.values()]
NET = mw.functional(Lm(), *ROW)


@functools.cache
def initial():
    return jax.device_get(mw.training.init_state(NET.init, TX, 0, layout_on(1)).params)


def of_tokens(logits, batch):
    """Return the losses of the next tokens, and which of them count: those of the same text."""
    segments = batch["segments"]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], batch["tokens"][:, 1:]), counts


@functools.cache
def by_hand():
    @jax.jit
    def train_step(params, opt_state, batch):
        def loss_fn(params):
            losses, counts = of_tokens(Lm().apply({"params": params}, **batch), batch)
            return (losses * counts).sum() / counts.sum()

        value, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    params, opt_state, losses = initial(), jax.jit(TX.init)(initial()), []
    for batch in in_order(EXAMPLES):
        params, opt_state, value = train_step(params, opt_state, batch)
        losses.append(value)
    return losses, params


def loss(params, batch):
    logits = NET.apply(params, **batch)
    return mw.Mean.of(*of_tokens(logits, batch))


@pytest.mark.slow
def test_on_one_device_a_mean_over_tokens_is_that_by_hand():
    losses, state = by_loss(NET.init, loss, TX, in_order(EXAMPLES), layout_on(1))
    close((losses, state.params), by_hand())


@pytest.mark.slow
def test_on_eight_devices_the_names_of_flax_split_what_flax_reshapes(tmp_path):
    described = {"model": NET, "loss": loss, "optimizer": TX}
    losses, state = by_experiment(tmp_path, EXAMPLES, rules=None, **described)
    heads = state.params["MultiHeadDotProductAttention_0"]
    assert heads["query"]["kernel"].sharding.spec == P("fsdp")
    close((losses, state.params), by_hand())
