"""Traced programs: what they compute, and what share of their devices that uses."""

from meshwright.program._flops import Flops, Product, count_flops, flops
from meshwright.program._peaks import peak_flops
from meshwright.program._products import product_flops
from meshwright.program._utilisation import (
    utilisation,
    utilisation_on,
    with_known_utilisation,
    with_utilisation,
)

__all__ = [
    "Flops",
    "Product",
    "count_flops",
    "flops",
    "peak_flops",
    "product_flops",
    "utilisation",
    "utilisation_on",
    "with_known_utilisation",
    "with_utilisation",
]
