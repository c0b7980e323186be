"""Traced programs: their operations, their floating-point operations, and the utilisation of devices.

`_program` makes a list of operations of a jaxpr. `_primitives` is the table of JAX's primitives, with the
rules of `_dimensions` and `_products`. `_influence` finds what a result depends on, `_evaluate` runs a jaxpr
again, `_lookups` checks the rows that a batch looks up, `_origin` finds the operation that made NaN.
`_flops`, `_peaks` and `_utilisation` count. May import ground rooms only. Add a primitive to `_primitives`,
and a device's peak to `_peaks`.
"""

from meshwright.program._dimensions import Dims, Rule
from meshwright.program._evaluate import CALLS, STACK, bind, evaluate, is_stack
from meshwright.program._flops import Flops, Product, count_flops, flops, program_flops
from meshwright.program._influence import influences, stacked
from meshwright.program._lookups import check_lookups
from meshwright.program._origin import Around, Given, Origin, first_made, origin
from meshwright.program._peaks import peak_flops
from meshwright.program._primitives import TABLE, Memory, Primitive, known_of, product_flops, rule_of
from meshwright.program._program import (
    Operation,
    Program,
    Tie,
    Value,
    equations,
    jaxprs_in,
    program_of,
    walk,
)
from meshwright.program._scans import scan_counts
from meshwright.program._utilisation import (
    utilisation,
    utilisation_on,
    with_known_utilisation,
    with_utilisation,
)

__all__ = [
    "CALLS",
    "STACK",
    "TABLE",
    "Around",
    "Dims",
    "Flops",
    "Given",
    "Memory",
    "Operation",
    "Origin",
    "Primitive",
    "Product",
    "Program",
    "Rule",
    "Tie",
    "Value",
    "bind",
    "check_lookups",
    "count_flops",
    "equations",
    "evaluate",
    "first_made",
    "flops",
    "influences",
    "is_stack",
    "jaxprs_in",
    "known_of",
    "origin",
    "peak_flops",
    "product_flops",
    "program_flops",
    "program_of",
    "rule_of",
    "scan_counts",
    "stacked",
    "utilisation",
    "utilisation_on",
    "walk",
    "with_known_utilisation",
    "with_utilisation",
]
