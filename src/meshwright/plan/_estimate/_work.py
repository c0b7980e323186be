"""The matrix products of a program, each as one device does its part of it."""

from dataclasses import dataclass

from meshwright.plan._estimate._propagation import Propagation
from meshwright.plan._estimate._traffic import Traffic
from meshwright.program import Operation, Program, product_flops


@dataclass(frozen=True)
class Work:
    """A matrix product, on one device."""

    flops: float
    nbytes: float
    """What it reads and writes."""
    dtype: str
    times: int
    """How often a step does it."""


def works(program: Program, specs: Propagation, traffic: Traffic, times: int = 1) -> list[Work]:
    """Return the products of a program, its bodies included."""
    found = []
    for operation in program.operations:
        for body in operation.bodies:
            found += works(body, specs, traffic, times * operation.turns)
        product = product_flops(operation)
        if product:
            found.append(_work(operation, *product, specs, traffic, times))
    return found


def _work(
    operation: Operation, flops: int, dtype: str, specs: Propagation, traffic: Traffic, times: int
) -> Work:
    """Each device does an equal part; what it reads of a gathered operand is all that was gathered."""
    axes = traffic.shares.get(operation, {})
    copies = dict(traffic.copies.get(operation, []))
    nbytes = sum(copies.get(value, specs.nbytes(value)) for value in operation.values)
    return Work(flops / specs.ways(axes), nbytes, dtype, times)
