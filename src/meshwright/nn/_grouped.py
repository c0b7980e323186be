"""Rows of several experts, arranged so that a product with the matrix of each row's expert is fast.

On TPUs rows are sorted by expert, and `jax.lax.ragged_dot` multiplies them: XLA has a kernel for it.
Elsewhere it would multiply each row with the matrices of all experts. There, rows are arranged in blocks of
one expert, the last of each expert with fillers at its end, and the product of a block is one of two
matrices:

    expert    0 0 0 0   0 0 - -   1 1 1 -   3 3 3 3   3 - - -   - - - -      rows of 4 experts in blocks of 4

All blocks are multiplied at once, with copies of their matrices, if these copies are small; otherwise in a
loop over parts of the blocks. Either way a device multiplies a quarter to a half more rows than there are.

Shapes: n rows in blocks, d features, f features of results, e experts.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.nn._hardware import Hardware
from meshwright.parallel._internal import in_microbatch

Dot = Callable[[jax.Array, jax.Array], jax.Array]
"""The product of rows with the matrix of the expert of each row."""
_BLOCKS_EACH = 4
"""The mean number of blocks of an expert, of which one has fillers."""
_COPIED = 2**20
"""The number of elements of copied matrices that are always few enough."""
_WORK = 2**31
"""The number of multiplications that are enough for one turn of a loop."""


class Arranged(NamedTuple):
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
    def of(cls, counts: jax.Array, most: int) -> "Arranged":
        """Return the arrangement that the hardware is best with."""
        hardware = Hardware.here()
        has_kernel = hardware.platform == "tpu" and not hardware.is_unknown
        # A mixture is exported for any number of rows, and then its blocks cannot be counted. JAX cannot map
        # the kernel over microbatches.
        is_sorted = (has_kernel and not in_microbatch()) or not isinstance(most, int)
        return cls._sorted(counts, most) if is_sorted else cls._in_blocks(counts, most)

    @classmethod
    def _sorted(cls, counts: jax.Array, most: int) -> "Arranged":
        ends = jnp.cumsum(counts)
        return cls(1, ends - counts, _experts_of_blocks(ends, most), partial(_ragged, counts))

    @classmethod
    def _in_blocks(cls, counts: jax.Array, most: int) -> "Arranged":
        e = counts.shape[0]
        size = _block_size(most, e)
        number = (most + e * (size - 1)) // size  # enough if the last block of each expert has one row only
        number = _rounded(number, 4)  # so that they can be divided into equal parts
        of_each = -(-counts // size)
        ends = jnp.cumsum(of_each)
        experts = _experts_of_blocks(ends, number)
        return cls(size, ends - of_each, experts, partial(_blocked, experts))

    @classmethod
    def one_block_each(cls, e: int, size: int) -> "Arranged":
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

    def some(_: None, of: Any) -> tuple[None, jax.Array]:
        rows, experts = of
        return None, jnp.einsum(equation, rows, weight.at[experts].get(mode="promise_in_bounds"))

    return _in_parts(some, None, (rows, experts), weight)[1]


def _forward(is_transposed: bool, *of: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(is_transposed, *of), of


def _backward(is_transposed: bool, of: tuple[jax.Array, ...], change: jax.Array) -> tuple[Any, ...]:
    rows, weight, experts = of
    equation = "brd,brf->bfd" if is_transposed else "brd,brf->bdf"
    wide = jnp.promote_types(weight.dtype, jnp.float32)

    def some(total: jax.Array, of: Any) -> tuple[jax.Array, None]:
        rows, change, experts = of
        found = jnp.einsum(equation, rows, change, preferred_element_type=wide)
        is_one = len(experts) == 1  # then XLA adds in place; several of one expert a GPU adds in any order
        how = {"indices_are_sorted": True, "unique_indices": is_one, "mode": "promise_in_bounds"}
        return total.at[experts].add(found, **how), None

    d_rows = _product(not is_transposed, change, weight, experts)
    d_weight, _ = _in_parts(some, jnp.zeros_like(weight, wide), (rows, change, experts), weight)
    return d_rows, d_weight.astype(weight.dtype), None


_product.defvjp(_forward, _backward)


def _in_parts(some: Callable[[Any, Any], Any], carry: Any, of: Any, weight: jax.Array) -> tuple[Any, Any]:
    """Return what a function makes of all blocks: of all at once, or of parts, one after the other."""
    (number, size), of_matrix = of[0].shape[:2], math.prod(weight.shape[1:])
    small = number * size * sum(weight.shape[1:]) // (4 * of_matrix)  # beside the rows and their results
    limit = max(1, _COPIED // of_matrix, min(small, _WORK // (size * of_matrix)))
    each = max(n for n in range(1, min(limit, number) + 1) if number % n == 0)
    if each == number:
        return some(carry, of)
    parts = jax.tree.map(lambda x: x.reshape(number // each, each, *x.shape[1:]), of)
    carry, made = jax.lax.scan(some, carry, parts)
    return carry, jax.tree.map(lambda x: x.reshape(number, *x.shape[2:]), made)
