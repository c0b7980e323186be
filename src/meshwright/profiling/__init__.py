"""What a run's time and memory go to."""

from meshwright.profiling._flops import Flops, Product, count_flops, flops
from meshwright.profiling._peaks import peak_flops
from meshwright.profiling._trace import Trace, tracer
from meshwright.profiling._utilisation import utilisation, with_utilisation

__all__ = [
    "Flops",
    "Product",
    "Trace",
    "count_flops",
    "flops",
    "peak_flops",
    "tracer",
    "utilisation",
    "with_utilisation",
]
