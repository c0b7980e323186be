"""How many floating-point operations a function is made of, read off its jaxpr.

What XLA says of a compiled program counts the body of a loop once, which makes nothing of a model whose
layers are scanned over (https://github.com/jax-ml/jax/issues/18672), and misses the calls into libraries
that matrix products become on a GPU (22249).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
from jax.extend.core import JaxprEqn, Var, jaxprs_in_params

from meshwright.program._products import FORMULAS, NO_FORMULA, dtype_of


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
    return _of_jaxpr(jaxpr, recomputed=False)


def _of_jaxpr(jaxpr: Any, *, recomputed: bool) -> Flops:
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)  # of a closed one
    return _sum(_of_equation(eqn, recomputed=recomputed or _is_again(eqn)) for eqn in _needed(jaxpr))


def _of_equation(eqn: JaxprEqn, *, recomputed: bool) -> Flops:
    name, params = eqn.primitive.name, eqn.params
    if name in FORMULAS:
        return _of_product(eqn, recomputed=recomputed)
    if name in NO_FORMULA:
        return Flops(not_counted=Counter({name: 1}))
    if name == "custom_linear_solve":  # beside what it does it holds what its gradient would do
        return _of_jaxpr(params["jaxprs"].solve, recomputed=recomputed)
    inner = [_of_jaxpr(jaxpr, recomputed=recomputed) for jaxpr in jaxprs_in_params(params)]
    if not inner:
        return Flops()
    if name == "cond":
        return max(inner, key=lambda branch: branch.hardware)
    if name == "while":
        return _sum(inner) + Flops(open_loops=1)
    return _sum(inner).times(_repetitions(eqn))


def _of_product(eqn: JaxprEqn, *, recomputed: bool) -> Flops:
    kind, formula = FORMULAS[eqn.primitive.name]
    work, dtype = formula(eqn), dtype_of(eqn)
    products = Counter({Product(kind, dtype, recomputed): work.needed})
    products[Product(kind, dtype, True)] += work.recomputed
    return Flops(+products)


def _repetitions(eqn: JaxprEqn) -> int:
    params = eqn.params
    if eqn.primitive.name == "scan":
        return params["length"]
    if eqn.primitive.name == "shard_map":  # its body is what one device does
        return math.prod(params["mesh"].shape[axis] for axis in params["newly_manual_axes"])
    return 1


def _is_again(eqn: JaxprEqn) -> bool:
    """Whether `jax.checkpoint` has this computed a second time, by the name that profiles show, too."""
    return "rematted_computation" in str(eqn.source_info.name_stack)


def _needed(jaxpr: Any) -> list[JaxprEqn]:
    """Return the equations that an output or an effect needs. XLA drops the rest, values of losses say."""
    needed, found = {x for x in jaxpr.outvars if isinstance(x, Var)}, []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(x for x in eqn.invars if isinstance(x, Var))
            found.append(eqn)
    return found


def _sum(counted: Iterable[Flops]) -> Flops:
    return sum((each for each in counted if each != Flops()), Flops())
