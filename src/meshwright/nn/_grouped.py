"""Rows of several experts, arranged so that a product with the matrix of each row's expert is fast.

On TPUs rows are sorted by expert, and `jax.lax.ragged_dot` multiplies them: XLA has a kernel for it.
Elsewhere it would multiply each row with the matrices of all experts. There, rows are arranged in blocks of
one expert, the last of each expert with fillers at its end, and the product of a block is one of two
matrices:

    expert    0 0 0 0   0 0 - -   1 1 1 -   3 3 3 3   3 - - -   - - - -      rows of 4 experts in blocks of 4

All blocks are multiplied at once, with copies of their matrices, if these copies are small; otherwise in a
loop over parts of the blocks. Either way a device multiplies a quarter to a half more rows than there are.

Rows move to their places and back by lookups, whose gradients are lookups, too. The gradient of any lookup
adds rows to those that they came from, in an order that may change. But each choice has one place at most. So
the gradient of the way to the places is the way back, and the other way round.

Shapes: m tokens of d features with k choices each, c = m × k choices; n rows in blocks, f features of
results, e experts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.nn._hardware import Hardware
from meshwright.parallel._internal import in_microbatch


class Choices(NamedTuple):
    """Choices, sorted by what was chosen."""

    ids: jax.Array
    """int32[c], the number of what each chose; e for nothing."""
    order: jax.Array
    """int32[c], the choices in their order."""
    places: jax.Array
    """int32[c], the place of each choice in the order."""
    counts: jax.Array
    """int32[e], the number of choices of each."""

    @classmethod
    def sort(cls, ids: jax.Array, e: int) -> "Choices":
        """Return the choices that have these numbers, below e."""
        order = jnp.argsort(ids, stable=True)
        counts = (ids[:, None] == jnp.arange(e)).sum(0, dtype=jnp.int32)
        return cls(ids, order, jnp.argsort(order), counts)


class Places(NamedTuple):
    """The choice in each place, and the place of each choice."""

    choices: jax.Array
    """int32[n], the choice in each place; c or more for none."""
    places: jax.Array
    """int32[c], the place of each choice; n or more for none."""


@jax.custom_vjp
def gathered(x: jax.Array, places: Places) -> jax.Array:
    """Return the tokens, [m, d], of the choices in the places, [n, d].

    Where there is no choice it is the last token: a row of zeros might give what is no number.
    """
    return x.at[places.choices // _num_choices(x, places)].get(mode="clip")


@jax.custom_vjp
def returned(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    """Return the weighted sums of what the choices of each token found, [m, d]."""
    return (_of_choices(rows, weights, places) * weights[..., None]).sum(1).astype(rows.dtype)


def _num_choices(x: jax.Array, places: Places) -> int:
    return places.places.shape[0] // x.shape[0]


def _of_choices(rows: jax.Array, weights: jax.Array, places: Places) -> jax.Array:
    results = rows.at[places.places].get(mode="fill", fill_value=0)
    dtype = jnp.promote_types(rows.dtype, weights.dtype)
    return results.reshape(*weights.shape, rows.shape[-1]).astype(dtype)


def _gathered_backward(residuals: Any, change: jax.Array) -> tuple[Any, ...]:
    x, places = residuals
    wide = jnp.promote_types(x.real.dtype, jnp.float32)
    ones = jnp.ones((x.shape[0], _num_choices(x, places)), wide)
    return returned(change, ones, places), None


def _returned_backward(operands: Any, change: jax.Array) -> tuple[Any, ...]:
    rows, weights, places = operands
    k = weights.shape[1]
    own = weights.reshape(-1).at[places.choices].get(mode="fill", fill_value=0)
    d_rows = change.at[places.choices // k].get(mode="fill", fill_value=0) * own[:, None]
    d_weights = (_of_choices(rows, weights, places) * change[:, None]).sum(-1)
    d_weights = d_weights if jnp.iscomplexobj(weights) else d_weights.real
    return d_rows.astype(rows.dtype), d_weights.astype(weights.dtype), None


gathered.defvjp(lambda x, places: (gathered(x, places), (x, places)), _gathered_backward)
returned.defvjp(lambda *operands: (returned(*operands), operands), _returned_backward)


Dot = Callable[[jax.Array, jax.Array], jax.Array]
"""The product of rows with the matrix of the expert of each row."""
_BLOCKS_EACH = 4
"""The mean number of blocks of an expert, of which one has fillers."""
_COPIED = 2**20
"""The number of elements of copied matrices that are always few enough."""
_WORK = 2**31
"""The number of multiplications that are enough for one turn of a loop."""


class Arrangement(NamedTuple):
    """Rows that are arranged by expert, each in a place."""

    size: int
    """The number of rows of a block."""
    firsts: jax.Array
    """int32[e], the first block of each expert."""
    experts: jax.Array
    """int32[n / size], the expert of each block."""
    dot: Dot
    """The product."""

    @property
    def num_rows(self) -> int:
        """The number of rows with fillers, n."""
        return self.size * self.experts.shape[0]

    @classmethod
    def best(cls, counts: jax.Array, most: int) -> "Arrangement":
        """Return the arrangement that is fastest on the hardware."""
        hardware = Hardware.current()
        has_kernel = hardware.platform == "tpu" and not hardware.is_unknown
        # A mixture is exported for any number of rows, and then its blocks cannot be counted. JAX cannot map
        # the kernel over microbatches.
        is_sorted = (has_kernel and not in_microbatch()) or not isinstance(most, int)
        return cls._sorted(counts, most) if is_sorted else cls._in_blocks(counts, most)

    @classmethod
    def _sorted(cls, counts: jax.Array, most: int) -> "Arrangement":
        ends = jnp.cumsum(counts)
        return cls(1, ends - counts, _experts_of_blocks(ends, most), partial(_ragged, counts))

    @classmethod
    def _in_blocks(cls, counts: jax.Array, most: int) -> "Arrangement":
        e = counts.shape[0]
        size = _block_size(most, e)
        # The blocks suffice if the last block of each expert has one row only. Rounded, their number divides
        # into equal parts.
        number = _rounded((most + e * (size - 1)) // size, 4)
        num_blocks = -(-counts // size)
        ends = jnp.cumsum(num_blocks)
        experts = _experts_of_blocks(ends, number)
        return cls(size, ends - num_blocks, experts, partial(_blocked, experts))

    @classmethod
    def one_block_each(cls, e: int, size: int) -> "Arrangement":
        """Return an arrangement with as many rows for each expert."""
        return cls(size, jnp.arange(e), jnp.arange(e), _batched)


def _experts_of_blocks(ends: jax.Array, number: int) -> jax.Array:
    """Return the expert of each of a number of blocks, given the end of the blocks of each expert."""
    past = (jnp.arange(number)[:, None] >= ends).sum(1, dtype=jnp.int32)
    return jnp.minimum(past, ends.shape[0] - 1)


def _block_size(most: int, e: int) -> int:
    """Return the rows of a block: a quarter of the mean of an expert, or a little more.

    It is a multiple of a large power of two, as matrix units want it.
    """
    if e == 1:
        return most
    return _rounded(math.ceil(most / (_BLOCKS_EACH * e)), 3)


def _rounded(least: int, bits: int) -> int:
    """Round up to a number that has at most so many binary digits before its zeros."""
    unit = 1 << max(0, (least - 1).bit_length() - bits)
    return unit * math.ceil(least / unit)


def _promoted(rows: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
    dtype = jnp.promote_types(rows.dtype, weight.dtype)
    return rows.astype(dtype), weight.astype(dtype)


def _ragged(counts: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(*_promoted(rows, weight), counts)


def _batched(rows: jax.Array, weight: jax.Array) -> jax.Array:
    of_experts = rows.reshape(weight.shape[0], -1, rows.shape[-1])
    return jnp.einsum("erd,edf->erf", *_promoted(of_experts, weight)).reshape(rows.shape[0], -1)


def _blocked(experts: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
    if weight.shape[0] == 1:
        return _batched(rows, weight)
    rows, weight = _promoted(rows, weight)
    of_blocks = rows.reshape(experts.shape[0], -1, rows.shape[-1])
    return _product(False, of_blocks, weight, experts).reshape(rows.shape[0], -1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(is_transposed: bool, rows: jax.Array, weight: jax.Array, experts: jax.Array) -> jax.Array:
    """Return [b, r, f], the products of b blocks, [b, r, d], with the matrices of their experts."""
    equation = "brd,bfd->brf" if is_transposed else "brd,bdf->brf"

    def multiply(_: None, blocks: Any) -> tuple[None, jax.Array]:
        rows, experts = blocks
        return None, jnp.einsum(equation, rows, weight.at[experts].get(mode="promise_in_bounds"))

    return _in_parts(multiply, None, (rows, experts), weight)[1]


def _forward(is_transposed: bool, *operands: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(is_transposed, *operands), operands


def _backward(is_transposed: bool, operands: tuple[jax.Array, ...], change: jax.Array) -> tuple[Any, ...]:
    rows, weight, experts = operands
    equation = "brd,brf->bfd" if is_transposed else "brd,brf->bdf"
    wide = jnp.promote_types(weight.dtype, jnp.float32)

    def add(total: jax.Array, blocks: Any) -> tuple[jax.Array, None]:
        rows, change, experts = blocks
        products = jnp.einsum(equation, rows, change, preferred_element_type=wide)
        # XLA adds one block in place. A GPU adds several blocks of one expert in any order.
        is_one = len(experts) == 1
        how = {"indices_are_sorted": True, "unique_indices": is_one, "mode": "promise_in_bounds"}
        return total.at[experts].add(products, **how), None

    d_rows = _product(not is_transposed, change, weight, experts)
    d_weight, _ = _in_parts(add, jnp.zeros_like(weight, wide), (rows, change, experts), weight)
    return d_rows, d_weight.astype(weight.dtype), None


_product.defvjp(_forward, _backward)


def _in_parts(
    function: Callable[[Any, Any], Any], carry: Any, blocks: Any, weight: jax.Array
) -> tuple[Any, Any]:
    """Return a function's results for all blocks: at once, or part by part."""
    (number, size), matrix_size = blocks[0].shape[:2], math.prod(weight.shape[1:])
    # So many copied matrices are small beside the rows and their results.
    small = number * size * sum(weight.shape[1:]) // (4 * matrix_size)
    limit = max(1, _COPIED // matrix_size, min(small, _WORK // (size * matrix_size)))
    part = max(n for n in range(1, min(limit, number) + 1) if number % n == 0)
    if part == number:
        return function(carry, blocks)
    parts = jax.tree.map(lambda x: x.reshape(number // part, part, *x.shape[1:]), blocks)
    carry, results = jax.lax.scan(function, carry, parts)
    return carry, jax.tree.map(lambda x: x.reshape(number, *x.shape[2:]), results)
