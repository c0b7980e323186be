"""What experts compute for tokens that are on this device, or that the mesh axis `expert` sends to it.

Each device along the axis holds some experts and some tokens. Tokens travel, and experts stay. There are two
forms:

    ring         The tokens of a device visit all others in turn, and what their experts add comes home with
                 them. A device sends m × d values n - 1 times, and as many of results.
    all-to-all   Each choice is sent to the device of its expert, and the result is sent back. There is room
                 for 1.25 × the mean for each device. What does not fit goes in another round, which all
                 devices leave out if nothing is left anywhere. A round sends 1.25 × m × k × d / n values to
                 each of n - 1 devices, and as many back.

No token is dropped in either. If the tokens of an expert are limited, its rows lie in slots, as many for
each expert. Otherwise `jax.lax.ragged_dot` multiplies them, and rows are moved by permutations, so that no
sum depends on the order of its parts.

Shapes: m tokens on one device, d features, k experts of a token, n devices of the axis, e experts on each.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.sharding import EXPERT, in_microbatch
from meshwright.tree import PyTree

Dot = Callable[[jax.Array, jax.Array], jax.Array]
"""The product of rows with the matrix of the expert of each row."""
Block = Callable[[PyTree, jax.Array, Dot], jax.Array]
"""A function `(weights, rows, dot) -> rows`, written as for one expert."""
_SLACK = 1.25
_SELDOM = "seldom"  # the name by which plans know rounds to leave out


class Tokens(NamedTuple):
    """Tokens with their experts."""

    x: jax.Array
    """[m, d]."""
    experts: jax.Array
    """int32[m, k], numbers among all experts; n × e for a choice that counts for nothing."""
    weights: jax.Array
    """float32[m, k]."""


def computed(
    block: Block, weights: PyTree, tokens: Tokens, limit: int | None, first: Any = 0, ways: int = 1
) -> jax.Array:
    """Return what the experts of this device add to tokens, [m, d].

    Args:
      block: What an expert computes.
      weights: Of the experts of this device, [e, ...].
      tokens: The tokens.
      limit: How many of these tokens each expert takes at most; None for all.
      first: The number of the first expert of this device.
      ways: The number of devices that compute these tokens, each with its own experts.
    """
    (m, k), e = tokens.experts.shape, num_experts(weights)
    local = tokens.experts - first
    is_here = (local >= 0) & (local < e)
    ids = jnp.where(is_here, local, e).reshape(-1)
    if limit is not None:
        return _weighted(_in_slots(block, weights, _copies(tokens.x, k), ids, limit), tokens)
    order, places = _sorted(ids)
    num_rows = m * min(k, e)  # a token goes to different experts
    rows = _copies(tokens.x, k).at[order[:num_rows]].get(unique_indices=True)
    with _used(m * k, ways * num_rows):
        found = _found(block, weights, rows, _sizes(ids, e))
    found = found.at[jnp.minimum(places, num_rows - 1)].get(mode="clip")
    return _weighted(jnp.where(is_here.reshape(-1, 1), found, 0), tokens)


def ring(block: Block, weights: PyTree, tokens: Tokens, limit: int | None) -> jax.Array:
    """Return what all experts add to the tokens of this device, [m, d]; the tokens visit all devices.

    The gradient computes the experts again, instead of keeping the hidden features of each turn.

    Args:
      block: What an expert computes.
      weights: Of the experts of this device, [e, ...].
      tokens: The tokens of this device.
      limit: How many of these tokens each expert takes at most; None for all.
    """
    ways = jax.lax.axis_size(EXPERT)
    first = jax.lax.axis_index(EXPERT) * num_experts(weights)
    one = jax.checkpoint(partial(computed, block, limit=limit, first=first, ways=ways), prevent_cse=False)

    def turn(carry: PyTree, _: None) -> tuple[PyTree, None]:
        tokens, total = carry
        # What was added before is sent on beside the products, and not after them.
        return (_sent(tokens, ways), _sent(total, ways) + one(weights, tokens)), None

    after = _sent(tokens, ways)
    own, total = one(weights, tokens), one(weights, after)
    if ways > 2:
        carry, _ = jax.lax.scan(turn, (_sent(after, ways), total), length=ways - 3)
        last, total = carry
        total = _sent(total, ways) + one(weights, last)
    return own + _sent(total, ways)


def exchanged(
    block: Block, weights: PyTree, tokens: Tokens, limit: int | None, axes: tuple[str, ...]
) -> jax.Array:
    """Return what all experts add to the tokens of this device, [m, d]; choices go to their experts' devices.

    Args:
      block: What an expert computes.
      weights: Of the experts of this device, [e, ...].
      tokens: The tokens of this device.
      limit: How many of these tokens each expert takes at most; None for all.
      axes: The axes of the `shard_map`, along which all devices make the same number of rounds.
    """
    ways = jax.lax.axis_size(EXPERT)
    (m, k), e = tokens.experts.shape, num_experts(weights)
    most = most_of_a_device(m, k, e, limit)
    room = min(most, room_of_a_round(m, k, ways))
    of_expert = None if limit is None else ways * min(limit, room)
    ids = tokens.experts.reshape(-1)
    devices = ids // e
    order, places = _sorted(ids)
    counts = _sizes(devices, ways)
    starts = jnp.cumsum(counts) - counts
    places -= starts.at[devices].get(mode="clip")  # among those that go to the same device

    def one(weights: PyTree, tokens: Tokens, number: Any) -> jax.Array:
        begin = number * room
        slots = begin + jnp.arange(room)
        taken = order.at[(starts[:, None] + slots).reshape(-1)].get(mode="clip")
        is_used = (slots < counts[:, None]).reshape(-1)
        rows = _copies(tokens.x, k)[taken]
        local = jnp.where(is_used, ids[taken] % e, e)
        with _used(m * k if limit is None else ways * room, ways * room):
            found = _of_rows(block, weights, _swapped(rows), _swapped(local), of_expert)
        is_in = (places >= begin) & (places < begin + room) & (devices < ways)
        at = jnp.where(is_in, devices * room + places - begin, 0)
        return _weighted(jnp.where(is_in[:, None], _swapped(found)[at], 0), tokens)

    total = one(weights, tokens, 0)
    rounds = math.ceil(most / room)
    if rounds == 1:
        return total
    longest = jax.lax.pmax(counts.max(), axes)
    again = jax.checkpoint(one, prevent_cse=False)

    def another(total: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        skipped = lambda *_: jnp.zeros_like(total)  # noqa: E731
        with jax.named_scope(_SELDOM):
            more = jax.lax.cond(longest > number * room, again, skipped, weights, tokens, number)
        return total + more, None

    return jax.lax.scan(another, total, jnp.arange(1, rounds))[0]


def room_of_a_round(m: int, k: int, ways: int) -> int:
    """Return how many choices a device sends to another in a round of the all-to-all."""
    return min(m * k, math.ceil(_SLACK * m * k / ways))


def most_of_a_device(m: int, k: int, e: int, limit: int | None) -> int:
    """Return the largest number of choices of m tokens that may fall on one device.

    Args:
      m: The number of tokens.
      k: The number of experts of a token, which are different ones.
      e: The number of experts on a device.
      limit: How many of the tokens each expert takes at most; None for all.
    """
    return m * min(k, e) if limit is None else min(m * min(k, e), limit * e)


def sends_fewer(m: int, k: int, ways: int, most: int) -> bool:
    """Return whether a round of the all-to-all sends fewer bytes than the ring.

    Args:
      m: The number of tokens of a device.
      k: The number of experts of a token.
      ways: The size of the axis `expert`.
      most: The largest number of choices that may fall on one device.
    """
    return min(most, room_of_a_round(m, k, ways)) < m


def num_experts(weights: PyTree) -> int:
    """Return e, given weights [e, ...]."""
    return jax.tree.leaves(weights)[0].shape[0]


def _of_rows(block: Block, weights: PyTree, rows: jax.Array, ids: jax.Array, slots: int | None) -> jax.Array:
    """Return the result of each row, given the number of its expert on this device; e for none.

    Args:
      block: What an expert computes.
      weights: Of the experts, [e, ...].
      rows: [n, d].
      ids: int32[n].
      slots: At least the number of rows of an expert; None if that has no limit.
    """
    if slots is not None:
        return _in_slots(block, weights, rows, ids, slots)
    order, places = _sorted(ids)
    sizes = _sizes(ids, num_experts(weights))
    found = _found(block, weights, rows.at[order].get(unique_indices=True), sizes)
    return found.at[places].get(unique_indices=True)


def _found(block: Block, weights: PyTree, rows: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return the results of rows that are sorted by expert; 0 for those after the last expert's."""
    found = block(weights, rows, partial(_dot, sizes))
    return jnp.where((jnp.arange(rows.shape[0]) < sizes.sum())[:, None], found, 0)


def _in_slots(block: Block, weights: PyTree, rows: jax.Array, ids: jax.Array, slots: int) -> jax.Array:
    """Return the result of each row; each expert has some slots for its rows, and all are computed.

    The product of all experts is one batched product of the same size for each, which all hardware has
    kernels for.

    Args:
      block: What an expert computes.
      weights: Of the experts, [e, ...].
      rows: [n, d].
      ids: The number of the expert of each row; e for none, whose result is 0.
      slots: The number of slots of an expert, at least that of its rows.
    """
    e = num_experts(weights)
    order, places = _sorted(ids)
    counts = _sizes(ids, e)
    starts, numbers = jnp.cumsum(counts) - counts, jnp.arange(slots)
    taken = order.at[(starts[:, None] + numbers).reshape(-1)].get(mode="clip")
    is_used = (numbers < counts[:, None]).reshape(-1, 1)
    found = block(weights, jnp.where(is_used, rows[taken], 0), partial(_batched_dot, slots))
    at = ids * slots + places - starts.at[ids].get(mode="clip")
    return jnp.where((ids < e)[:, None], found.at[at].get(mode="clip"), 0)


def _used(count: int, rows: int) -> AbstractContextManager[Any]:
    """Return a scope that tells plans for how many of the rows there are choices, on average."""
    return nullcontext() if count == rows else jax.named_scope(f"used_{count}_of_{rows}_rows")


def _dot(sizes: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
    dtype = jnp.promote_types(rows.dtype, weight.dtype)
    product = _product_in_a_pipeline if in_microbatch() else jax.lax.ragged_dot
    return product(rows.astype(dtype), weight.astype(dtype), sizes)


def _batched_dot(slots: int, rows: jax.Array, weight: jax.Array) -> jax.Array:
    dtype = jnp.promote_types(rows.dtype, weight.dtype)
    of_experts = rows.reshape(-1, slots, rows.shape[-1]).astype(dtype)
    return jnp.einsum("eri,eio->ero", of_experts, weight.astype(dtype)).reshape(rows.shape[0], -1)


def _product_in_a_pipeline(rows: jax.Array, weight: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return the product that `ragged_dot` defines, which JAX cannot map over microbatches."""
    ends = jnp.cumsum(sizes)
    number = jnp.arange(rows.shape[0])
    is_of = (number >= (ends - sizes)[:, None]) & (number < ends[:, None])
    return jnp.einsum("emi,eio->mo", jnp.where(is_of[..., None], rows, 0), weight)


def _copies(x: jax.Array, k: int) -> jax.Array:
    """Return k copies of each row, one for each of its choices."""
    return jnp.repeat(x, k, axis=0)


def _weighted(found: jax.Array, tokens: Tokens) -> jax.Array:
    """Return the weighted sums of the results of each token's choices, [m, d], given [m × k, d]."""
    of_choices = found.reshape(*tokens.experts.shape, -1).astype(tokens.weights.dtype)
    return (of_choices * tokens.weights[..., None]).sum(1).astype(found.dtype)


def _sorted(ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the order of choices by number, and the place of each choice in it."""
    order = jnp.argsort(ids, stable=True)
    return order, jnp.argsort(order)


def _sizes(ids: jax.Array, count: int) -> jax.Array:
    """Return how many choices fall on each of `count` numbers."""
    return (ids[:, None] == jnp.arange(count)).sum(0, dtype=jnp.int32)


def _sent(x: PyTree, ways: int) -> PyTree:
    """Return the arrays of the device before this one in the ring."""
    pairs = [(i, (i + 1) % ways) for i in range(ways)]
    return jax.tree.map(lambda part: jax.lax.ppermute(part, EXPERT, pairs), x)


def _swapped(x: jax.Array) -> jax.Array:
    """Send the i-th part of the rows to the i-th device, and return what came from all, in order."""
    return jax.lax.all_to_all(x, EXPERT, split_axis=0, concat_axis=0, tiled=True)
