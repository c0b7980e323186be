"""The results of experts for tokens of this device, or tokens that the mesh axis `expert` sends.

Each device along the axis holds some experts and some tokens. Tokens travel, and experts stay. There are two
forms:

    ring         The tokens of a device visit all others in turn, and what their experts add comes home with
                 them. A device sends m × d values n - 1 times, and as many of results.
    all-to-all   Each choice is sent to the device of its expert, and the result is sent back. A round sends
                 1.25 × m × k × d / n values to each of n - 1 devices, and as many back.

In both a device makes rounds, each with room for 1.25 × the mean, if the tokens of an expert are not limited.
What does not fit goes in another round, which is left out if nothing is left. No token is dropped. Rows are
arranged by expert, as `Arrangement` says.

Shapes: m tokens on one device, d features, k experts of a token, n devices of the axis, e experts on each.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.base._internal import PyTree
from meshwright.nn._grouped import Arrangement, Choices, Dot, Places, gathered, returned
from meshwright.parallel._internal import EXPERT, in_microbatch

Block = Callable[[PyTree, jax.Array, Dot], jax.Array]
"""A function `(weights, rows, dot) -> rows`, written as for one expert."""
_SLACK = 1.25
# Plans know the rounds to leave out by this name.
_SELDOM = "seldom"


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
    """Return what the experts of this device add to tokens, [m, d]."""
    (m, k), e = tokens.experts.shape, num_experts(weights)
    local = tokens.experts - first
    choices = Choices.sort(jnp.where((local >= 0) & (local < e), local, e).reshape(-1), e)
    # A token goes to different experts.
    most = m * min(k, e)

    def one_round(room: int, weights: PyTree, tokens: Tokens, number: Any) -> jax.Array:
        return _summed(block, weights, tokens, choices, number * room, room, limit, _Used(m * k, ways))

    # Mapped over microbatches, a round could not be left out.
    if ways == 1 or limit is not None or in_microbatch():
        return one_round(most, weights, tokens, 0)
    # Devices that XLA splits a product over have the same tokens, and so make the same rounds.
    room = min(most, room_of_a_round(m, k, ways))
    needed = -(-choices.counts.sum() // room)
    return _in_rounds(partial(one_round, room), weights, tokens, -(-most // room), needed)


def ring(block: Block, weights: PyTree, tokens: Tokens, limit: int | None) -> jax.Array:
    """Return what all experts add to the tokens of this device, [m, d]; the tokens visit all devices.

    The gradient computes the experts again, and keeps no hidden features. Arguments are as for `computed`.
    """
    ways = jax.lax.axis_size(EXPERT)
    first = jax.lax.axis_index(EXPERT) * num_experts(weights)
    visit = jax.checkpoint(partial(computed, block, limit=limit, first=first, ways=ways), prevent_cse=False)

    def turn(carry: PyTree, _: None) -> tuple[PyTree, None]:
        tokens, total = carry
        # What was added before is sent on beside the products, and not after them.
        return (_sent(tokens, ways), _sent(total, ways) + visit(weights, tokens)), None

    neighbours = _sent(tokens, ways)
    own, total = visit(weights, tokens), visit(weights, neighbours)
    if ways > 2:
        carry, _ = jax.lax.scan(turn, (_sent(neighbours, ways), total), length=ways - 3)
        last, total = carry
        total = _sent(total, ways) + visit(weights, last)
    return own + _sent(total, ways)


def all_to_all(
    block: Block, weights: PyTree, tokens: Tokens, limit: int | None, axes: tuple[str, ...]
) -> jax.Array:
    """Return what all experts add to this device's tokens, [m, d]; choices go to their experts' devices.

    Arguments are as for `computed`; along `axes`, of the `shard_map`, all make the same number of rounds.
    """
    ways = jax.lax.axis_size(EXPERT)
    (m, k), e = tokens.experts.shape, num_experts(weights)
    most = most_of_a_device(m, k, e, limit)
    room = min(most, room_of_a_round(m, k, ways))
    of_expert = None if limit is None else ways * min(limit, room)
    devices = tokens.experts.reshape(-1) // e
    _, order, places, counts = Choices.sort(devices, ways)
    starts = jnp.cumsum(counts) - counts
    # Places count the choices that go to the same device.
    places -= starts.at[devices].get(mode="clip")

    def one_round(weights: PyTree, tokens: Tokens, number: Any) -> jax.Array:
        begin = number * room
        slots = begin + jnp.arange(room)
        sent = order.at[(starts[:, None] + slots).reshape(-1)].get(mode="clip")
        is_used = (slots < counts[:, None]).reshape(-1)
        is_in = (places >= begin) & (places < begin + room) & (devices < ways)
        moved = Places(
            jnp.where(is_used, sent, m * k), jnp.where(is_in, devices * room + places - begin, ways * room)
        )
        ids = _swapped(jnp.where(is_used, tokens.experts.reshape(-1)[sent] % e, e))
        rows = _swapped(gathered(tokens.x, moved))
        came = Tokens(rows, ids[:, None], jnp.ones((ways * room, 1), tokens.weights.dtype))
        choices = Choices.sort(ids, e)
        results = _summed(block, weights, came, choices, 0, ways * room, of_expert, _Used(m * k))
        return returned(_swapped(results), tokens.weights, moved)

    longest = jax.lax.pmax(counts.max(), axes)
    return _in_rounds(one_round, weights, tokens, -(-most // room), -(-longest // room))


def room_of_a_round(m: int, k: int, ways: int) -> int:
    """Return how many choices a device sends to another in a round of the all-to-all."""
    return min(m * k, math.ceil(_SLACK * m * k / ways))


def most_of_a_device(m: int, k: int, e: int, limit: int | None) -> int:
    """Return the largest number of choices of m tokens that may fall on one device."""
    return m * min(k, e) if limit is None else min(m * min(k, e), limit * e)


def sends_fewer(m: int, k: int, ways: int, most: int) -> bool:
    """Return whether a round of the all-to-all sends fewer bytes than the ring."""
    return min(most, room_of_a_round(m, k, ways)) < m


def num_experts(weights: PyTree) -> int:
    """Return e, given weights [e, ...]."""
    return jax.tree.leaves(weights)[0].shape[0]


class _Used(NamedTuple):
    """The choices, on average, for which some devices have rows."""

    count: int
    """The number of choices."""
    devices: int = 1
    """The number of devices."""


def _summed(
    block: Block,
    weights: PyTree,
    tokens: Tokens,
    choices: Choices,
    begin: Any,
    room: int,
    slots: int | None,
    used: _Used,
) -> jax.Array:
    """Return the sums for tokens, [m, d], over their choices with a place from `begin` on."""
    ids, order, places, counts = choices
    e, ends = num_experts(weights), jnp.cumsum(counts)
    starts, ends = (jnp.clip(x, begin, begin + room) for x in (ends - counts, ends))
    arranged = (
        Arrangement.best(ends - starts, room) if slots is None else Arrangement.one_block_each(e, slots)
    )
    size, number = arranged.size, jnp.arange(arranged.num_rows)
    expert = arranged.experts[number // size]
    position = starts[expert] + number - size * arranged.firsts[expert]
    row = size * arranged.firsts.at[ids].get(mode="clip") + places - starts.at[ids].get(mode="clip")
    is_placed = (ids < e) & (places >= begin) & (places < begin + room)
    moved = Places(
        jnp.where(position < ends[expert], order.at[position].get(mode="clip"), ids.shape[0]),
        jnp.where(is_placed, row, arranged.num_rows),
    )
    # The scope tells plans for how many of the rows there are choices.
    scope = jax.named_scope(f"used_{used.count}_of_{used.devices * arranged.num_rows}_rows")
    with nullcontext() if slots is not None else scope:
        results = block(weights, gathered(tokens.x, moved), arranged.dot)
    return returned(results, tokens.weights, moved)


def _in_rounds(
    one_round: Callable[..., jax.Array], weights: PyTree, tokens: Tokens, most: int, needed: jax.Array
) -> jax.Array:
    """Return the sum of the results of rounds."""
    total = one_round(weights, tokens, 0)
    if most == 1:
        return total
    seldom = partial(_seldom, jnp.zeros_like(total))

    def others(weights: PyTree, tokens: Tokens) -> jax.Array:
        def another(more: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            return more + seldom(one_round)(number < needed, weights, tokens, number), None

        return jax.lax.scan(another, jnp.zeros_like(total), jnp.arange(1, most))[0]

    return total + seldom(others)(needed > 1, weights, tokens)


def _seldom(otherwise: jax.Array, function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a function that is seldom called, given first whether it is.

    It is computed again for its gradient, inside of the condition, too: a value that leaves a condition takes
    memory even if the branch that makes it is not taken.
    """
    again = jax.checkpoint(function, prevent_cse=False)

    def called(is_needed: jax.Array, *operands: Any) -> jax.Array:
        with jax.named_scope(_SELDOM):
            return jax.lax.cond(is_needed, again, lambda *_: otherwise, *operands)

    return jax.checkpoint(called, prevent_cse=False)


def _sent(x: PyTree, ways: int) -> PyTree:
    """Return the arrays of the device before this one in the ring."""
    pairs = [(i, (i + 1) % ways) for i in range(ways)]
    return jax.tree.map(lambda part: jax.lax.ppermute(part, EXPERT, pairs), x)


def _swapped(x: jax.Array) -> jax.Array:
    """Send the i-th part of the rows to the i-th device, and return what came from all, in order."""
    return jax.lax.all_to_all(x, EXPERT, split_axis=0, concat_axis=0, tiled=True)
