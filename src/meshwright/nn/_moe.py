"""The public `moe`: it checks the arguments, and splits tokens and experts over the mesh in force."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshwright.base._internal import PyTree, tree
from meshwright.errors import AxisError, UsageError
from meshwright.nn._experts import (
    Block,
    Tokens,
    all_to_all,
    computed,
    most_of_a_device,
    num_experts,
    ring,
    sends_fewer,
)
from meshwright.nn._grouped import Arrangement
from meshwright.nn._inputs import result_without_draws
from meshwright.nn._routing import Routing, Score, room_of, routed
from meshwright.parallel._internal import (
    APART,
    EXPERT,
    axes_dividing,
    in_microbatch,
    microbatch_axes,
    position_axes,
)


def moe(
    block: Block,
    experts: PyTree,
    x: jax.Array,
    logits: jax.Array,
    *,
    top_k: int,
    normalize: bool = True,
    score: Score = jax.nn.softmax,
    bias: jax.Array | None = None,
    capacity: float | None = None,
) -> tuple[jax.Array, Routing]:
    """Return, for each token, the weighted sum of what its experts compute, and how even their load is.

    Each token goes to the `top_k` experts with the largest scores. No token is dropped, unless there is a
    `capacity`. Tokens are sorted by expert. On TPUs `jax.lax.ragged_dot` multiplies them, for which XLA has a
    kernel. Elsewhere they are multiplied in blocks of one expert, with fillers in the last block of each:
    a quarter to a half more rows than there are. A mixture has gradients of its own, so `jax.jvp` refuses it.

    On a mesh with the axis `expert` each device holds a part of the experts, and tokens are sent to them, not
    experts to tokens. Either the tokens of each device visit all others in a ring, or each choice is sent to
    the device of its expert by an all-to-all. Both have room for 1.25 × the mean, if there is no `capacity`;
    what does not fit is computed in further rounds. The second sends fewer bytes, and is taken, if 1.25 ×
    `top_k` is less than the size of the axis. Other axes split tokens, and `fsdp` and `tensor` the experts,
    as in any layer. Values are those of one device.

    Unproven: never run on GPUs and TPUs, where its products are others.

    Args:
      block: What an expert computes, `(weights, rows, dot) -> rows`, written as for one expert: `dot(rows,
        weights["up"])` is its product. A bias of an expert is the product of ones with `b[:, None]`. It may
        draw random numbers only where no mesh axis splits tokens or experts.
      experts: The weights of all experts, a pytree of arrays [E, ...].
      x: The tokens, [..., D], split by example over the mesh.
      logits: The router's logits, [..., E]. They are computed with in float32.
      top_k: The number of experts of each token.
      normalize: If true, the weights of a token's experts add up to 1. Otherwise they are the scores.
      score: A function from logits to scores. DeepSeek's is `jax.nn.sigmoid`.
      bias: [E], added to the scores for the choice only, without a gradient. One that is raised for experts
        with little load balances them without a loss (Wang et al., arXiv:2408.15664).
      capacity: If given, an expert takes from each example, which is a row of `x`, at most this factor of the
        mean number of tokens. It drops those after, which then lack its part. If `x` has two dimensions, it
        is one example. Each expert then multiplies as many rows, in one batched product.

    Returns:
      The tokens, [..., D'], as `block` makes them, and a `mw.nn.Routing` with the losses that keep the
      experts' load even, which you add to yours.

    Raises:
      UsageError: Shapes or numbers do not fit together.
      LayoutError: The axis `expert` does not divide the experts.

    Example:
      >>> def block(weights, rows, dot):
      ...     return dot(jax.nn.relu(dot(rows, weights["up"])), weights["down"])
      >>> experts = {"up": jnp.ones((4, 8, 16)), "down": jnp.ones((4, 16, 8))}
      >>> x, router = jnp.ones((2, 3, 8)), jnp.ones((8, 4))
      >>> y, routing = mw.nn.moe(block, experts, x, x @ router, top_k=2)
      >>> y.shape, routing.load.tolist()
      ((2, 3, 8), [0.5, 0.5, 0.0, 0.0])
    """
    _check(experts, x, logits, top_k, capacity)
    over = _Over.current(x)
    over.check(logits.shape[-1])
    # Otherwise the block is called once, for all tokens.
    if over.manual or in_microbatch():
        rows = Arrangement.one_block_each(logits.shape[-1], 2)
        few = jax.ShapeDtypeStruct((rows.num_rows, x.shape[-1]), x.dtype)
        weights = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, w.dtype), experts)
        result_without_draws("the block of mw.nn.moe", lambda w, x: block(w, x, rows.dot), weights, few)
    # XLA would gather the scores of all tokens before it looks for the largest.
    choose = over.mapped(lambda scores: jax.lax.top_k(scores, top_k)[1], 1)
    choice, routing = routed(logits, choose, normalize=normalize, score=score, bias=bias, capacity=capacity)
    room = None if capacity is None else room_of(capacity, logits.shape, top_k)

    def local(weights: PyTree, *of_tokens: jax.Array) -> jax.Array:
        x, tokens = of_tokens[0], Tokens(*(y.reshape(-1, y.shape[-1]) for y in of_tokens))
        examples = x.shape[0] if x.ndim > 2 else 1
        weights = read_through(*weights) if over.num_copies > 1 else weights
        results = _computed(block, weights, tokens, over, None if room is None else examples * room)
        return results.reshape(*x.shape[:-1], -1)

    experts, x, choice = _varying_alike((experts, x, choice))
    weights = with_shadows(experts, over.num_copies) if over.num_copies > 1 else experts
    with jax.named_scope(APART if capacity is None else "capacity"):
        return over.mapped(local, 3, over.of_experts)(weights, x, *choice), routing


def _varying_alike(arrays: PyTree) -> PyTree:
    """Return arrays that differ between the devices of the same axes of a `shard_map` around.

    So JAX adds up the gradients of an array that is the same on all of them.
    """
    varying = lambda x: jax.typeof(x).manual_axis_type.varying  # noqa: E731
    axes = frozenset().union(*map(varying, jax.tree.leaves(arrays)))

    def cast(x: jax.Array) -> jax.Array:
        missing = tuple(axes - varying(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, arrays)


@dataclass(frozen=True)
class _Over:
    """The axes of the surrounding mesh that split tokens and experts."""

    ways: int
    """The size of the axis `expert`."""
    axes: tuple[str, ...]
    """The axes that split examples."""
    positions: tuple[str, ...]
    """The axes that split positions."""

    @classmethod
    def current(cls, x: jax.Array) -> "_Over":
        """Return the axes that split experts, and tokens [..., D] by example and position."""
        mesh = jax.sharding.get_abstract_mesh()
        sizes = {axis: size for axis, size in mesh.shape.items() if axis not in mesh.manual_axes}
        positions = position_axes(x.shape[1]) if x.ndim > 2 else ()
        return cls(sizes.get(EXPERT, 1), axes_dividing(x.shape[0]), positions)

    @property
    def manual(self) -> tuple[str, ...]:
        """The axes of the `shard_map`."""
        of_experts = (EXPERT,) if self.ways > 1 else ()
        axes = tuple(dict.fromkeys((*self.axes, *self.positions, *of_experts)))
        return (*axes, *microbatch_axes()) if axes else ()

    def check(self, count: int) -> None:
        """Raise an `AxisError` if the axis `expert` does not split so many experts into equal parts."""
        if count % self.ways:
            raise AxisError(
                f"mesh axis {EXPERT!r} of size {self.ways} does not divide {count} experts.\n"
                "  Use a size of the axis that divides them, or another number of experts.",
                EXPERT,
            )

    @property
    def num_copies(self) -> int:
        """The number of devices that have the same experts and other tokens."""
        sizes = jax.sharding.get_abstract_mesh().shape
        return math.prod(sizes[axis] for axis in self._copying)

    @property
    def of_experts(self) -> Any:
        """The split of the weights of experts; with copies, also that of their shadows."""
        own = (EXPERT,) if self.ways > 1 else ()
        return (P(*own), P(self._copying, *own)) if self.num_copies > 1 else P(*own)

    @property
    def _copying(self) -> tuple[str, ...]:
        return tuple(axis for axis in (*self.axes, *self.positions) if axis != EXPERT)

    def mapped(
        self, local: Callable[..., jax.Array], of_tokens: int, *others: Any
    ) -> Callable[..., jax.Array]:
        """Return `local`, run on each device's part of its arguments."""
        if not self.manual:
            return local
        tokens = P(self.axes or None, *((self.positions,) if self.positions else ()))
        return jax.shard_map(
            local,
            in_specs=(*others, *(tokens,) * of_tokens),
            out_specs=tokens,
            axis_names=frozenset(self.manual),
            check_vma=False,
        )


def _computed(block: Block, weights: PyTree, tokens: Tokens, over: _Over, limit: int | None) -> jax.Array:
    """Return what all experts add to the tokens of this device."""
    if over.ways == 1:
        return computed(block, weights, tokens, limit)
    (m, k), e = tokens.experts.shape, num_experts(weights)
    # All devices along the axis have the same tokens.
    if EXPERT not in over.axes:
        first = jax.lax.axis_index(EXPERT) * e
        return jax.lax.psum(computed(block, weights, tokens, limit, first, over.ways), EXPERT)
    # Mapped over microbatches, a round could not be left out.
    if sends_fewer(m, k, over.ways, most_of_a_device(m, k, e, limit)) and not in_microbatch():
        return all_to_all(block, weights, tokens, limit, over.manual)
    return ring(block, weights, tokens, limit)


def _check(experts: PyTree, x: jax.Array, logits: jax.Array, top_k: Any, capacity: Any) -> None:
    shapes = {name: jnp.shape(leaf) for name, leaf in tree.named_leaves(experts).items()}
    counts = {shape[0] if shape else None for shape in shapes.values()}
    listed = ", ".join(f"{name or 'array'} {shape}" for name, shape in shapes.items()) or "nothing"
    if len(counts) != 1 or None in counts:
        raise UsageError(f"mw.nn.moe: the first dimension of each array must count experts; found {listed}.")
    if x.ndim < 2 or logits.shape != (*x.shape[:-1], *counts):
        raise UsageError(
            f"mw.nn.moe takes x [..., D] and logits [..., E] for E experts: found x {x.shape}, logits "
            f"{logits.shape}, and experts {listed}."
        )
    if 0 in x.shape[:-1]:
        raise UsageError(f"mw.nn.moe was given no tokens: x has the shape {x.shape}. It needs one or more.")
    if not isinstance(top_k, int) or not 1 <= top_k <= logits.shape[-1]:
        raise UsageError(f"top_k={top_k!r}: expected a number from 1 to {logits.shape[-1]}, that of experts.")
    if capacity is not None and not (isinstance(capacity, int | float) and 0 < capacity < math.inf):
        raise UsageError(f"capacity={capacity!r}: expected a number above 0, such as 1.25, or None.")


# Inside a `shard_map` over the axes of the batch, JAX adds up the gradients of weights that are whole on each
# device, and the sum is whole, too. Outside, XLA adds up gradients as for other layers: under `fsdp` each
# device gets its part of the sum. So weights go in without a gradient, and beside them a shadow: zeros with a
# dimension for the copies of the weights. The shadow takes the gradient, summed over copies outside.
def with_shadows(weights: PyTree, count: int) -> tuple[PyTree, PyTree]:
    """Return weights without a gradient, and their shadows, [count, ...], which have it."""
    return jax.lax.stop_gradient(weights), jax.tree.map(partial(_shadow, count), weights)


def read_through(weights: PyTree, shadows: PyTree) -> PyTree:
    """Return weights whose gradient their shadows take, inside the `shard_map`."""
    return jax.tree.map(_read_through, weights, shadows)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _shadow(count: int, weight: jax.Array) -> jax.Array:
    # What is mapped over the weights, such as the stages of a pipeline, must be mapped over their shadows.
    nothing = weight[(slice(0, 0),) * weight.ndim].sum(dtype=weight.dtype)
    return jnp.broadcast_to(nothing, (count, *weight.shape))


_shadow.defvjp(
    lambda count, weight: (_shadow(count, weight), None),
    lambda count, _, changes: (changes.sum(0, dtype=changes.dtype),),
)


@jax.custom_vjp
def _read_through(weight: jax.Array, shadow: jax.Array) -> jax.Array:
    return weight


_read_through.defvjp(lambda weight, shadow: (weight, None), lambda _, change: (None, change[None]))
