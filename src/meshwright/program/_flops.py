"""How many floating-point operations a function is made of, read off its jaxpr.

What XLA says of a compiled program counts the body of a loop once, which makes nothing of a model whose
layers are scanned over (https://github.com/jax-ml/jax/issues/18672), and misses the calls into libraries
that matrix products become on a GPU (22249).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

from meshwright.program._primitives import UNKNOWN, known_of, rule_of
from meshwright.program._products import Work, dtype_of
from meshwright.program._program import Operation, Program, program_of


class Product(NamedTuple):
    """A kind of matrix product."""

    kind: str
    """`dot`, `ragged_dot`, `convolution` or `attention`."""
    dtype: str
    """What is multiplied."""
    recomputed: bool
    """A second time, rather than kept: by `jax.checkpoint`, or cuDNN's gradient of attention."""


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of matrix products, on all devices together.

    All else, elementwise work above all, is left out, as is usual (PaLM, arXiv 2204.02311, appendix B).
    """

    products: Mapping[Product, int] = field(default_factory=Counter)
    """Operations by kind."""
    not_counted: Mapping[str, int] = field(default_factory=Counter)
    """Primitives whose work is not known, such as `pallas_call`, and how often they run."""
    open_loops: int = 0
    """`while` loops: how often they turn is not known, and their bodies are counted once."""

    @property
    def model(self) -> int:
        """Those that the mathematics asks for: what model FLOPs utilisation (MFU) is about."""
        return sum(count for product, count in self.products.items() if not product.recomputed)

    @property
    def hardware(self) -> int:
        """Those that the devices do, recomputation included: what hardware FLOPs utilisation is about."""
        return sum(self.products.values())

    def __add__(self, other: "Flops") -> "Flops":
        return Flops(
            Counter(self.products) + Counter(other.products),
            Counter(self.not_counted) + Counter(other.not_counted),
            self.open_loops + other.open_loops,
        )

    def times(self, number: int) -> "Flops":
        """Return those of doing it all so many times."""
        products = {product: number * count for product, count in self.products.items()}
        not_counted = {name: number * count for name, count in self.not_counted.items()}
        return Flops(products, not_counted, number * self.open_loops)


def flops(function: Callable[..., Any], *arguments: Any) -> Flops:
    """Return the operations of `function(*arguments)`: arrays, or `jax.ShapeDtypeStruct`s of global shapes.

    Traced, neither compiled nor run. To the operation for matrix products, batched or not, convolutions and
    attention, whatever transforms or control flow they are in, but:

    - of the branches of a condition that with most work counts, and `while` loops once (`fori_loop` with
      constant bounds is none);
    - attention counts whole, whatever its mask lets be;
    - what `jax.shard_map` does on every device alike counts on each.
    """
    return count_flops(jax.make_jaxpr(function)(*arguments))


def count_flops(jaxpr: Any) -> Flops:
    """Return the operations of a jaxpr, such as `jax.make_jaxpr(function)(*arguments)` or `Step.jaxpr`."""
    return _of_program(program_of(jaxpr))


def _of_program(program: Program) -> Flops:
    return sum((x for x in map(_of_operation, program.operations) if x is not _NONE), _NONE)


def _of_operation(operation: Operation) -> Flops:
    known = known_of(operation)
    if known.work is not None:
        return _of_product(operation, known.product, known.work(operation.eqn, rule_of(operation)))
    if known.uncounted or (known is UNKNOWN and any(jaxprs_in_params(operation.eqn.params))):
        return Flops(not_counted=Counter({operation.kind: 1}))
    if not operation.bodies:
        return _NONE
    bodies = [_of_program(body) for body in operation.bodies]
    if operation.kind == "cond":
        return max(bodies, key=lambda branch: branch.hardware)
    open_loops = Flops(open_loops=int(operation.kind == "while"))
    return sum(bodies, open_loops).times(_repetitions(operation))


def _of_product(operation: Operation, kind: str, work: Work) -> Flops:
    dtype = dtype_of(operation.eqn)
    products = Counter({Product(kind, dtype, operation.is_recomputed): work.needed})
    products[Product(kind, dtype, True)] += work.recomputed
    return Flops(+products)


def _repetitions(operation: Operation) -> int:
    if operation.kind == "shard_map":  # its body is what one device does
        params = operation.eqn.params
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return operation.turns


_NONE = Flops()
