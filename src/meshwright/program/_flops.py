"""Floating-point operations of a function, counted in its jaxpr.

XLA's own count of a compiled program counts the body of a loop once, which is useless for a model with
scanned layers (https://github.com/jax-ml/jax/issues/18672). It also misses matrix products that become
library calls on a GPU (https://github.com/jax-ml/jax/issues/22249).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from meshwright.program import _jaxprs as jaxprs
from meshwright.program._primitives import UNKNOWN
from meshwright.program._products import Work, dtype_of
from meshwright.program._program import Operation, Program, program_of


class Product(NamedTuple):
    """A kind of matrix product."""

    kind: str
    """`dot`, `ragged_dot`, `convolution` or `attention`."""
    dtype: str
    """Dtype of the factors."""
    recomputed: bool
    """True if it is computed a second time to save memory: by `jax.checkpoint` or in cuDNN's attention. Or if
    a device of a pipeline computes it while it has nothing to do."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of matrix products, over all devices together.

    All other work, mostly elementwise, is left out, as is usual (PaLM, arXiv 2204.02311, appendix B).

    Example:
      >>> counted = mw.observe.flops(lambda a, b: a @ b, jnp.ones((8, 4)), jnp.ones((4, 2)))
      >>> (counted + counted.times(2)).model
      384
    """

    products: Mapping[Product, int] = field(default_factory=Counter)
    """Floating-point operations by kind of product."""
    not_counted: Mapping[str, int] = field(default_factory=Counter)
    """Number of executions of each primitive whose work is not known, such as `pallas_call`."""
    open_loops: int = 0
    """Number of `while` loops with an unknown number of iterations; their bodies are counted once."""

    @property
    def model(self) -> int:
        """Operations without recomputation, for model FLOPs utilisation (MFU)."""
        return sum(count for product, count in self.products.items() if not product.recomputed)

    @property
    def hardware(self) -> int:
        """Operations with recomputation, for hardware FLOPs utilisation (HFU)."""
        return sum(self.products.values())

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            Counter(self.products) + Counter(other.products),
            Counter(self.not_counted) + Counter(other.not_counted),
            self.open_loops + other.open_loops,
        )

    def times(self, number: int) -> "Flops":
        """Return the operations of `number` executions."""
        products = {product: number * count for product, count in self.products.items()}
        not_counted = {name: number * count for name, count in self.not_counted.items()}
        return Flops(products, not_counted, number * self.open_loops)


def flops(function: Callable[..., Any], *arguments: Any) -> Flops:
    """Return the floating-point operations of `function(*arguments)`.

    The function is traced, and neither compiled nor run. The count is exact for matrix products, convolutions
    and attention under any transformation or control flow, with these exceptions:

    - A condition counts its branch with most work, and a `while` loop one iteration (`fori_loop` with
      constant bounds is counted in full).
    - Attention by cuDNN's kernel counts in full, whatever its mask. By splash attention all blocks count over
      which the kernel's grid runs, also those that the mask hides. Other Pallas kernels do not count, and are
      named in `not_counted`.
    - Work that `jax.shard_map` repeats on every device counts on each.

    Args:
      function: Function of arrays.
      arguments: Arrays, or `jax.ShapeDtypeStruct`s, of global shapes.

    Example:
      >>> mw.observe.flops(lambda a, b: a @ b, jnp.ones((8, 4)), jnp.ones((4, 2))).model
      128
    """
    return count_flops(jax.make_jaxpr(function)(*arguments))


def count_flops(jaxpr: Any) -> Flops:
    """Return the floating-point operations of a jaxpr, counted as `flops` does.

    Args:
      jaxpr: Such as `jax.make_jaxpr(function)(*arguments)` or `Step.jaxpr`.

    Example:
      >>> jaxpr = jax.make_jaxpr(jnp.dot)(jnp.ones((8, 4)), jnp.ones((4, 2)))
      >>> mw.observe.count_flops(jaxpr).model
      128
    """
    return program_flops(program_of(jaxpr))


def program_flops(program: Program) -> Flops:
    """Return the floating-point operations of a program, counted as `flops` does."""
    return sum((x for x in map(_of_operation, program.operations) if x is not _NONE), _NONE)


def _of_operation(operation: Operation) -> Flops:
    primitive = operation.primitive
    if work := operation.work:
        return _of_product(operation, primitive.product, work)
    if operation.kind == "pallas_call" and operation.eqn.params["name"] in _NEEDED_OF_SPLASH:
        return _of_splash(operation)
    if primitive.uncounted or (primitive is UNKNOWN and any(jaxprs.inside(operation.eqn))):
        return Flops(not_counted=Counter({operation.kind: 1}))
    if not operation.bodies:
        return _NONE
    bodies = [program_flops(body) for body in operation.bodies]
    if operation.is_condition:
        return max(bodies, key=lambda branch: branch.hardware)
    open_loops = Flops(open_loops=int(operation.is_while))
    # The body of a shard_map is the work of one device.
    times = jaxprs.mapped_of(operation.eqn).ways if operation.is_mapped else operation.turns
    return sum(bodies, open_loops).times(times)


def _of_product(operation: Operation, kind: str, work: Work) -> Flops:
    dtype = dtype_of(operation.eqn)
    needed = round(work.needed * operation.used_share)
    idle = 0 if operation.is_recomputed else round(needed * operation.idle_share)
    products = Counter({Product(kind, dtype, operation.is_recomputed): needed - idle})
    products[Product(kind, dtype, True)] += work.recomputed + idle
    return Flops(+products)


def _of_splash(operation: Operation) -> Flops:
    """Count the products of a kernel, each block in full, for all blocks that its grid visits."""
    params, body = operation.eqn.params, jaxprs.body_of(operation.eqn)
    whole = program_flops(program_of(body)).times(math.prod(params["grid_mapping"].grid))
    products: Counter[Product] = Counter()
    for product, count in whole.products.items():
        needed = 0 if operation.is_recomputed else int(count * _NEEDED_OF_SPLASH[params["name"]])
        products[Product("attention", product.dtype, False)] += needed
        products[Product("attention", product.dtype, True)] += count - needed
    return Flops(+products)


# The kernels of `jax.experimental.pallas.ops.tpu.splash_attention` by name, with the share of their products
# that no other kernel computes: dq takes the scores again, dk and dv the scores and their gradient.
_NEEDED_OF_SPLASH = {
    f"splash_{heads}_{phase}{segments}_{residuals}": share
    for heads in ("mha", "mqa")
    for segments in ("", "_segmented")
    for phase, residuals, share in (
        ("fwd", "residuals", 1.0),
        ("fwd", "no_residuals", 1.0),
        ("dq", "no_residuals", 2 / 3),
        ("dkv", "no_residuals", 1 / 2),
    )
}
_NONE = Flops()
