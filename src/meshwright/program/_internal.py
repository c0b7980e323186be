"""The names of `program` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.program import _jaxprs as jaxprs
    from meshwright.program._dimensions import Dims, Rule
    from meshwright.program._evaluate import (
        as_function,
        bind,
        bind_body,
        evaluate,
        replacing,
        without_checkpoints,
    )
    from meshwright.program._flops import Flops, count_flops, flops, program_flops
    from meshwright.program._hlo._collectives import Collective, axes_written, collectives
    from meshwright.program._hlo._files import save_hlo
    from meshwright.program._hlo._kernels import kernels, memory_traffic
    from meshwright.program._hlo._program import collective_of
    from meshwright.program._influence import influences, parts_of, stacked
    from meshwright.program._jaxprs import Equation
    from meshwright.program._lookups import check_lookups
    from meshwright.program._primitives import TABLE, Algebra, Memory, primitive_of
    from meshwright.program._products import Convolution, convolution_of, dtype_of
    from meshwright.program._program import Operation, Program, Tie, Value, program_of, walk
    from meshwright.program._utilisation import (
        peak_flops,
        utilisation_on,
        with_known_utilisation,
        with_utilisation,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
