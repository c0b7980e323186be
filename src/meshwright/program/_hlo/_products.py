"""Floating-point operations of the matrix products in a compiled program.

A multiplication with its addition counts as two operations.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.program._hlo._program import Computation, Instruction, Program, arrays


def hlo_flops(program: Program, computation: Computation, op: Instruction) -> int:
    """Return the FLOPs of the products of an instruction: its own, or those inside a fusion."""
    inner = program.fused(op)
    if inner:
        return sum(hlo_flops(program, inner, each) for each in inner.values())
    shapes = [_shape(computation[name].type) for name in op.operands if name in computation]
    if op.opcode == "dot":
        return _dot(_shape(op.type), shapes[0], _ints(op, r"lhs_contracting_dims=\{([\d,]*)\}"))
    if op.opcode == "convolution":
        return _convolution(op, shapes[0], shapes[1])
    if op.opcode == "custom-call" and "__cublas" in op.attributes:
        return _dot(_shape(op.type), shapes[0], _ints(op, r'"lhs_contracting_dimensions":\[([\d",]*)\]'))
    return 0


def _dot(result: Sequence[int], left: Sequence[int], contracted: Sequence[int]) -> int:
    return 2 * math.prod(result) * math.prod(left[dim] for dim in contracted)


def _convolution(op: Instruction, left: Sequence[int], kernel: Sequence[int]) -> int:
    """Return the FLOPs for those places of the window that meet an element of the input.

    On TPUs, dots are convolutions. The contracted dimension may be the window, and so may a batch dimension;
    its input is then dilated so that only one element of the window meets the input at each place.
    """
    of_left, of_kernel, of_result = re.findall(r"dim_labels=(\w+)_(\w+)->(\w+)", op.attributes)[0]
    result = _shape(op.type)
    flops = 2 * result[of_result.index("b")] * result[of_result.index("f")] * kernel[of_kernel.index("i")]
    for number, window in enumerate(_windows(op, len(kernel) - 2)):
        dim = str(number)
        sizes = left[of_left.index(dim)], kernel[of_kernel.index(dim)], result[of_result.index(dim)]
        flops *= _places_on_input(*sizes, window)
    return flops


class _Window(NamedTuple):
    """Position of a convolution's window along one dimension."""

    stride: int
    pad: int
    """Padding before the first element."""
    lhs_dilate: int
    rhs_dilate: int


def _windows(op: Instruction, num_dims: int) -> list[_Window]:
    """Read `window={size=8x2 stride=7x1 pad=0_0x1_1 lhs_dilate=8x1}`; all but the size may be missing."""
    written = re.search(r"window=\{([^}]*)\}", op.attributes)
    fields = dict(field.split("=") for field in written[1].split()) if written else {}

    def each(name: str, default: int) -> list[int]:
        if name not in fields:
            return [default] * num_dims
        return [int(number.split("_")[0]) for number in fields[name].split("x")]

    defaults = {"stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
    return [_Window(*one) for one in zip(*(each(*field) for field in defaults.items()), strict=True)]


def _places_on_input(size: int, window_size: int, places: int, window: _Window) -> int:
    """Return the number of pairs of a window's place and an element in it that meet the input."""
    at = np.arange(places)[:, None] * window.stride + np.arange(window_size) * window.rhs_dilate - window.pad
    return int(np.sum((at >= 0) & (at % window.lhs_dilate == 0) & (at // window.lhs_dilate < size)))


def _shape(type_: str) -> tuple[int, ...]:
    """Return the shape of the first array in a type."""
    return next(arrays(type_))[0]


def _ints(op: Instruction, pattern: str) -> list[int]:
    found = re.search(pattern, op.attributes)
    return [int(number) for number in re.findall(r"\d+", found[1])] if found else []
