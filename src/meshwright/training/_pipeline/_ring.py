"""A stack of layers as a pipeline: microbatches move along a ring of devices, one place at each tick.

The ring has a place for each microbatch. The first place of each of the p devices is a stage, and the others
are a queue in front of stage 0, spread over all devices. M microbatches, r rounds and L / (p r) layers in a
stage take M r + p - 1 ticks:

    tick       0   1   2   3   4   5        p = 3, M = 3, r = 1
    stage 0    0   1   2
    stage 1        0   1   2
    stage 2            0   1   2            5 ticks, in 3 of which a device works

With rounds (Narayanan et al., arXiv:2104.04473), a device has r stages of fewer layers, and each microbatch
comes by r times. A tick is r times shorter, and so are the p - 1 ticks in which a device idles.

Devices send to their neighbours only. All devices compute at each tick; where nothing is to be done, they do
so with a microbatch that waits, and leave it as it was: there is no value that no model would see.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.parallel._internal import layers_of_stage, split_over_stages, stage_ways
from meshwright.program._internal import bind, evaluate, jaxprs, without_checkpoints
from meshwright.training._pipeline._stage_arrays import along, over_microbatches, sent_on

# Of these is `x[round, layer]` made, a copy of the weights of one layer.
_COPIES = ("dynamic_slice", "gather", "squeeze", "reshape", "broadcast_in_dim")


@dataclass(frozen=True)
class Ring:
    r"""The schedule of microbatches over the stages of a pipeline.

    Example:
      >>> ring = mw.training.Ring(stages=3, microbatches=4)
      >>> ring.ticks, round(ring.idle_share, 2)
      (6, 0.33)
      >>> print("\n".join(ring.drawn()))
       0 1 2 3 . .
       . 0 1 2 3 .
       . . 0 1 2 3
    """

    stages: int
    """The number of devices along the axis."""
    microbatches: int
    rounds: int = 1
    """The number of times that a microbatch goes around the ring."""

    @property
    def places(self) -> int:
        """The number of places in the ring: the microbatches, rounded up to a multiple of the stages."""
        return -(-self.microbatches // self.stages) * self.stages

    @property
    def queued(self) -> int:
        """The number of places of each device that are not a stage."""
        return self.places // self.stages - 1

    @property
    def ticks(self) -> int:
        """The number of ticks until the last microbatch has left the last stage."""
        return (self.rounds - 1) * self.places + self.microbatches + self.stages - 1

    @property
    def idle_share(self) -> float:
        """The share of the ticks in which a device has nothing to do."""
        return 1 - self.microbatches * self.rounds / self.ticks

    def drawn(self, ticks: int = 24) -> list[str]:
        """Return a line for each stage, with the microbatch that it computes at each tick, or a dot.

        Args:
          ticks: The number of ticks to draw; of a longer schedule these are the first.
        """
        width = len(str(self.microbatches - 1)) + 1
        lines = []
        for stage in range(self.stages):
            entries = [tick - stage for tick in range(min(ticks, self.ticks))]
            works = [
                0 <= n < self.rounds * self.places and n % self.places < self.microbatches for n in entries
            ]
            cells = [str(n % self.places) if works else "." for n, works in zip(entries, works, strict=True)]
            lines.append("".join(f"{cell:>{width}}" for cell in cells) + (" …" if self.ticks > ticks else ""))
        return lines

    def order(self) -> np.ndarray:
        """Return the microbatch at each place, device by device, before the first tick."""
        p, K, M = self.stages, self.queued, self.places
        first = [M - d if d else M - p for d in range(p)]
        queues = [range(-d % p * K, (-d % p + 1) * K) for d in range(p)]
        return np.array(
            [[first_place, *queue] for first_place, queue in zip(first, queues, strict=True)]
        ).reshape(-1)

    def moved_in(self, state: Any, queue: Any, tick: Any) -> tuple[Any, Any]:
        """Put the next microbatch into stage 0, and the one that was there at the end of the queue."""
        if not self.queued:
            return state, queue
        column = jax.tree.map(lambda x: _column(x, tick % self.queued), queue)
        state, column = self._swapped(state, column)
        column = jax.tree.map(sent_on, column)
        return state, self._put(queue, column, tick)

    def moved_out(self, state: Any, queue: Any, tick: Any) -> tuple[Any, Any]:
        """Undo `moved_in`."""
        if not self.queued:
            return state, queue
        column = jax.tree.map(lambda x: sent_on(_column(x, tick % self.queued), -1), queue)
        state, column = self._swapped(state, column)
        return state, self._put(queue, column, tick)

    def _swapped(self, state: Any, column: Any) -> tuple[Any, Any]:
        def exchanged(x: Any, y: Any) -> Any:
            is_first = along(jnp.arange(self.stages) == 0, x)
            return split_over_stages(jnp.where(is_first, y, x))

        return jax.tree.map(exchanged, state, column), jax.tree.map(exchanged, column, state)

    def _put(self, queue: Any, column: Any, tick: Any) -> Any:
        index = tick % self.queued
        return jax.tree.map(
            lambda x, new: split_over_stages(jax.lax.dynamic_update_index_in_dim(x, new, index, 1)),
            queue,
            column,
        )


def run_stages(ring: Ring, state: Any, stage: Callable[[Any, Any, Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return all microbatches after all stages, [places, ...], and the other results of the stages.

    Returns:
      The microbatches in the order in which they came; and the `aux`, [stages, rounds, places, ...], of
      microbatches in their natural order.
    """
    p, M, s = ring.stages, ring.places, jnp.arange(ring.stages)
    rings = jax.tree.map(lambda x: split_over_stages(x.reshape(p, -1, *x.shape[1:])), state)
    current, queue = jax.tree.map(lambda x: x[:, 0], rings), jax.tree.map(lambda x: x[:, 1:], rings)

    def tick(carry: Any, t: Any) -> tuple[Any, Any]:
        current, queue = ring.moved_in(carry[0], carry[1], t)
        n = t - s
        is_active = (n >= 0) & (n < ring.rounds * M)
        with jax.named_scope(f"busy_{ring.microbatches * ring.rounds}_of_{ring.ticks}_ticks"):
            new, aux = stage(jnp.clip(n // M, 0, ring.rounds - 1), n % M, current)
        merged = jax.tree.map(lambda new, old: jnp.where(along(is_active, new), new, old), new, current)
        return (jax.tree.map(sent_on, merged), queue), aux

    def back(carry: Any, t: Any) -> tuple[Any, None]:
        current = jax.tree.map(lambda x: sent_on(x, -1), carry[0])
        return ring.moved_out(current, carry[1], t), None

    carry, auxs = jax.lax.scan(tick, (current, queue), jnp.arange(ring.ticks))
    # Turn the ring back to where it began.
    if (late := ring.ticks - ring.rounds * M) > 0:
        carry, _ = jax.lax.scan(back, carry, ring.ticks - 1 - jnp.arange(late))
    turned = ring.rounds * M % ring.queued if ring.queued else 0
    current, queue = carry
    out = jax.tree.map(
        lambda x, q: split_over_stages(jnp.concatenate([x[:, None], jnp.roll(q, -turned, 1)], 1)),
        current,
        queue,
    )
    return jax.tree.map(lambda x: split_over_stages(x.reshape(M, *x.shape[2:])), out), jax.tree.map(
        lambda y: _by_microbatch(ring, y), auxs
    )


def _by_microbatch(ring: Ring, y: Any) -> Any:
    """Return [ticks, stages, ...] as [stages, rounds, places, ...]."""
    total = ring.rounds * ring.places
    y = jnp.pad(y, [(0, max(0, total + ring.stages - 1 - ring.ticks)), *[(0, 0)] * (y.ndim - 1)])
    parts = [y[s : s + total, s] for s in range(ring.stages)]
    out = jnp.stack(parts)
    return split_over_stages(out.reshape(ring.stages, ring.rounds, ring.places, *out.shape[2:]))


def _column(x: Any, index: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(x, index, 1, keepdims=False)


def pipelined_scan(
    eqn: Any, operands: Sequence[Any], batched: Sequence[bool], microbatches: int, rounds: int
) -> list[Any]:
    """Return the results of a scan over layers for all microbatches, [places, ...], by a ring of stages."""
    scan = _Scan(eqn, operands, batched, Ring(stage_ways(), microbatches, rounds))
    out, aux = run_stages(scan.ring, scan.state, scan.stage)
    return [*out[: scan.num_carry], *map(scan.in_place, aux)]


class _Scan:
    """A scan over layers, cut into stages."""

    def __init__(self, eqn: Any, operands: Sequence[Any], batched: Sequence[bool], ring: Ring) -> None:
        self.ring, scan = ring, jaxprs.scan_of(eqn)
        self.body, self.num_carry, num_consts = scan.body, scan.num_carry, scan.num_consts
        self.keys = [key_type(var.aval) for var in eqn.invars]
        self.each = layers_of_stage(len(scan.turns), ring.stages, ring.rounds)
        numbers = [plain(x) for x in operands]
        first, last = num_consts, scan.num_whole
        carry = [
            x if is_batched else jnp.broadcast_to(x, (ring.places, *x.shape))
            for x, is_batched in zip(numbers[first:last], batched[first:last], strict=True)
        ]
        self.moving = [i for i in range(num_consts) if batched[i]]
        self.shared = {i: numbers[i] for i in range(num_consts) if not batched[i]}
        self.state = [*carry, *(numbers[i] for i in self.moving)]
        self.xs = {i: self._of_stages(numbers[i], batched[i]) for i in range(last, len(numbers))}
        self.is_own = {i: batched[i] for i in self.xs}

    def _of_stages(self, x: Any, is_own: bool) -> Any:
        """Return [L, ...] as [stages, rounds, L / (stages rounds), ...].

        What is a microbatch's own, [places, L, ...], becomes [stages, rounds, places, ...].
        """
        p, r = self.ring.stages, self.ring.rounds
        if not is_own:
            return _summed(split_over_stages(jnp.swapaxes(x.reshape(r, p, self.each, *x.shape[1:]), 0, 1)))
        x = x[np.argsort(self.ring.order())]
        x = x.reshape(x.shape[0], r, p, self.each, *x.shape[2:])
        return (split_over_stages(jnp.transpose(x, (2, 1, 0, *range(3, x.ndim)))),)

    def stage(self, round_of: Any, microbatch_of: Any, state: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the state after one stage on each device."""
        of_all = over_microbatches(self._one_stage)
        return of_all(round_of, microbatch_of, state, self.xs)

    def _one_stage(self, q: Any, i: Any, state: list[Any], xs: dict[int, Any]) -> tuple[list[Any], list[Any]]:
        moved = dict(zip(self.moving, state[self.num_carry :], strict=True))
        consts = [value for _, value in sorted({**self.shared, **moved}.items())]
        own = [tuple(x[:, i] for x in xs[n]) if self.is_own[n] else xs[n] for n in xs]

        def one_layer(carry: list[Any], layer: Any) -> tuple[list[Any], list[Any]]:
            if self.ring.rounds > 1:
                layer = [tuple(x[q, layer] for x in parts) for parts in own]
            results = self._layer([*consts, *carry, *(_of_sum(*parts) for parts in layer)])
            return results[: self.num_carry], results[self.num_carry :]

        # The weights of a round are a copy, which is not kept for the gradient.
        if self.ring.rounds > 1:
            one_layer = jax.checkpoint(one_layer, policy=_without_copies(self.policy), prevent_cse=False)
            carry, aux = jax.lax.scan(one_layer, state[: self.num_carry], jnp.arange(self.each))
        else:
            carry, aux = jax.lax.scan(
                one_layer, state[: self.num_carry], [tuple(x[0] for x in parts) for parts in own]
            )
        return [*carry, *moved.values()], aux

    def _layer(self, operands: list[Any]) -> list[Any]:
        """Return the results of the body of the scan for operands in which keys are numbers."""
        arguments = [
            x if key is None else jax.random.wrap_key_data(x, impl=key)
            for x, key in zip(operands, self.keys, strict=True)
        ]
        results = without_checkpoints if self.ring.rounds > 1 else bind
        return [plain(x) for x in evaluate(self.body, arguments, results)]

    @property
    def policy(self) -> Any:
        """The policy of the block's own `jax.checkpoint`; all values are kept if it has none."""
        first = next(filter(jaxprs.is_checkpoint, jaxprs.equations(self.body)), None)
        everything = jax.checkpoint_policies.everything_saveable
        return everything if first is None else jaxprs.settings_of(first)["policy"]

    def in_place(self, aux: Any) -> Any:
        """Return [stages, rounds, places, layers, ...] as [places, L, ...], in the order of the ring."""
        aux = jnp.transpose(aux, (2, 1, 0, *range(3, aux.ndim)))
        return aux.reshape(aux.shape[0], -1, *aux.shape[4:])[self.ring.order()]


def _without_copies(policy: Any) -> Any:
    """Return a policy that does not keep the results of operations that only copy."""
    if policy is None:
        return None
    return lambda primitive, *rest, **more: primitive.name not in _COPIES and policy(primitive, *rest, **more)


def _summed(x: Any) -> tuple[Any, ...]:
    """Return the arguments of `_of_sum` for weights, so that gradients of narrow ones add up in float32."""
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize >= 4:
        return (x,)
    return jax.lax.stop_gradient(x), x.astype(jnp.float32)


@jax.custom_vjp
def _of_sum(x: Any, wide: Any = None) -> Any:
    return x


_of_sum.defvjp(
    lambda x, wide=None: (x, wide is None),
    lambda is_alone, g: (g, None) if is_alone else (None, g.astype(jnp.float32)),
)


def key_type(aval: Any) -> Any:
    is_key = jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
    return str(jax.random.key_impl(jnp.zeros((), aval.dtype))) if is_key else None


def plain(x: Any) -> Any:
    """Return the numbers of keys, and anything else as it is."""
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
