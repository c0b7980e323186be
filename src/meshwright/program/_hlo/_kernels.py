"""Kernels of a compiled step: their FLOPs, and the bytes that they read from and write to device memory.

A fusion is one kernel: values that are made and used inside it stay on the chip.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.program._hlo._collectives import exchanging, kind_of
from meshwright.program._hlo._executions import Execution, executions
from meshwright.program._hlo._program import (
    Computation,
    Instruction,
    Program,
    arrays,
    memory_bytes,
    parse,
    root_of,
)

NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"),
    *("partition-id", "replica-id", "add-dependency", "domain"),
    # The instructions that these call are kernels.
    *("while", "conditional", "call", "async-start"),
}
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Operations that change a part of their first operand in place, with the index of the operand written."""
NOTHING = {"AllocateBuffer", "AsyncCollectiveDone"}
"""Custom calls that move no data; for the second, the earlier fusions did."""


@dataclass(frozen=True)
class Kernel:
    """An instruction of a program that a device runs as a whole."""

    name: str
    """Name as in profiles."""
    opcode: str
    """Name of the HLO operation."""
    times: int
    """Number of executions in a step, with the iterations of all enclosing loops."""
    flops: int
    """Floating-point operations of its matrix products, for one execution."""
    nbytes: int
    """Bytes that it reads from and writes to device memory, for one execution."""
    source: str
    """Operation of the traced function that it comes from; "" if the compiler does not say."""
    in_open_loop: bool = False
    """True if it is in a loop with an unknown number of iterations; `times` then counts one iteration."""


def kernels(hlo: str) -> list[Kernel]:
    """Return the kernels that a device runs in a step.

    - Each operand is read once and each result written once: caches are not modelled.
    - For slices, gathers, scatters and in-place updates, alone or in a fusion, only the part counts.
    - On TPUs, data that the compiler keeps on the chip (VMEM) is free, but moving it there counts.
    - Products are dots, convolutions and calls of cuBLAS; not those of cuDNN or of custom kernels (Pallas,
      Triton), whose FLOPs `count_flops` counts if it can.
    - Of a condition's branches only the one that makes most bytes counts.

    Example:
      >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((8, 4)), jnp.ones((4, 2))).compile()
      >>> sum(kernel.times * kernel.flops for kernel in mw.program._internal.kernels(compiled.as_text()))
      128
    """
    program = parse(hlo)
    return [kernel for run in executions(program) for kernel in _kernels(program, run)]


def memory_traffic(hlo: str) -> int:
    """Return the bytes that a device reads from and writes to its memory in a step, counted as by `kernels`.

    Example:
      >>> compiled = jax.jit(jnp.sin).lower(jnp.ones(1024)).compile()
      >>> mw.program._internal.memory_traffic(compiled.as_text())
      8192
    """
    return sum(kernel.times * kernel.nbytes for kernel in kernels(hlo))


class _Fusion(NamedTuple):
    inner: Computation
    counted: frozenset[str]
    """Names of collectives that an earlier fusion began and counted."""


def _kernels(program: Program, run: Execution) -> Iterator[Kernel]:
    begun = {(x.caller.name, x.op.name) for x in exchanging(program, run)}
    for op in run.computation.values():
        if not _is_kernel(op):
            continue
        if inner := program.fused(op):
            own = {name for caller, name in begun if caller == op.name}
            counted = {x.name for x in inner.values() if kind_of(x)} - own
            nbytes = _fusion_bytes(_Fusion(inner, frozenset(counted)))
        else:
            nbytes = _bytes(op, run.computation)
        flops = _flops(program, run.computation, op)
        yield Kernel(op.name, op.opcode, run.times, flops, nbytes, op.source, run.in_open_loop)


def _is_kernel(op: Instruction) -> bool:
    return op.opcode not in NO_KERNEL and not op.opcode.endswith(("-done", "-update")) and not _is_nothing(op)


def _is_nothing(op: Instruction) -> bool:
    return any(f'custom_call_target="{target}"' in op.attributes for target in NOTHING)


def _bytes(op: Instruction, computation: Computation) -> int:
    operands = [computation[name] for name in op.operands]
    opcode = op.opcode.removesuffix("-start")
    if opcode in SLICES:
        return 2 * _result_bytes(op, operands)
    if opcode in UPDATES:
        return 2 * memory_bytes(operands[UPDATES[opcode]].type)
    return sum(memory_bytes(x.type) for x in operands) + _result_bytes(op, operands)


def _result_bytes(op: Instruction, operands: list[Instruction]) -> int:
    """Return the bytes of the result.

    The start of an async pair also holds its operands, which do not count.
    """
    result = memory_bytes(op.type)
    if op.opcode == "send" or (op.opcode.endswith("-start") and op.opcode != "all-reduce-start"):
        return result - sum(memory_bytes(x.type) for x in operands)
    return result


def _fusion_bytes(fusion: _Fusion) -> int:
    parameters = [op for op in fusion.inner.values() if op.opcode == "parameter"]
    return sum(_read_bytes(op, fusion) for op in parameters) + _written_bytes(root_of(fusion.inner), fusion)


def _read_bytes(op: Instruction, fusion: _Fusion) -> int:
    """Return the bytes read of a parameter of a fusion, or of a bitcast of one."""
    uses = [use for use in fusion.inner.values() if op.name in use.operands]
    return min(memory_bytes(op.type), sum(_read_by(use, op, fusion) for use in uses))


def _read_by(use: Instruction, op: Instruction, fusion: _Fusion) -> int:
    is_first = use.operands[0] == op.name
    if use.opcode == "bitcast":
        return _read_bytes(use, fusion)
    if use.opcode in SLICES and is_first:
        return memory_bytes(use.type)
    if use.opcode == "tuple" or (use.opcode in UPDATES and is_first) or _is_elsewhere(use, fusion):
        return 0
    return memory_bytes(op.type)


def _written_bytes(op: Instruction, fusion: _Fusion) -> int:
    """Return the bytes written for a result of a fusion, or for all results of a tuple."""
    operands = [fusion.inner[name] for name in op.operands]
    if op.opcode == "parameter" or _is_elsewhere(op, fusion):
        return 0
    if op.opcode == "tuple":
        return sum(_written_bytes(operand, fusion) for operand in operands)
    if op.opcode == "bitcast":
        return min(memory_bytes(op.type), _written_bytes(operands[0], fusion))
    if op.opcode in UPDATES:
        return min(memory_bytes(op.type), memory_bytes(operands[UPDATES[op.opcode]].type))
    return memory_bytes(op.type)


def _is_elsewhere(op: Instruction, fusion: _Fusion) -> bool:
    return op.name in fusion.counted or _is_nothing(op)


def _flops(program: Program, computation: Computation, op: Instruction) -> int:
    """Return the FLOPs of the products of an instruction: its own, or those inside a fusion.

    A multiplication with its addition counts as two operations.
    """
    inner = program.fused(op)
    if inner:
        return sum(_flops(program, inner, x) for x in inner.values())
    shapes = [_shape(computation[name].type) for name in op.operands if name in computation]
    if op.opcode == "dot":
        return _dot(_shape(op.type), shapes[0], _ints(op, r"lhs_contracting_dims=\{([\d,]*)\}"))
    if op.opcode == "convolution":
        return _convolution(op, shapes[0], shapes[1])
    if op.opcode == "custom-call" and "__cublas" in op.attributes:
        return _dot(_shape(op.type), shapes[0], _ints(op, r'"lhs_contracting_dimensions":\[([\d",]*)\]'))
    return 0


def _dot(result: Sequence[int], lhs: Sequence[int], contracted: Sequence[int]) -> int:
    return 2 * math.prod(result) * math.prod(lhs[dim] for dim in contracted)


def _convolution(op: Instruction, lhs: Sequence[int], kernel: Sequence[int]) -> int:
    """Return the FLOPs for those places of the window that meet an element of the input.

    On TPUs, dots are convolutions. The contracted dimension may be the window, and so may a batch dimension;
    its input is then dilated so that only one element of the window meets the input at each place.
    """
    of_lhs, of_kernel, of_result = re.findall(r"dim_labels=(\w+)_(\w+)->(\w+)", op.attributes)[0]
    result = _shape(op.type)
    flops = 2 * result[of_result.index("b")] * result[of_result.index("f")] * kernel[of_kernel.index("i")]
    for number, window in enumerate(_windows(op, len(kernel) - 2)):
        dim = str(number)
        sizes = lhs[of_lhs.index(dim)], kernel[of_kernel.index(dim)], result[of_result.index(dim)]
        flops *= _places_on_input(*sizes, window)
    return flops


class _Window(NamedTuple):
    """Position of a convolution's window along one dimension."""

    stride: int = 1
    pad: int = 0
    """Padding before the first element."""
    lhs_dilate: int = 1
    rhs_dilate: int = 1


def _windows(op: Instruction, num_dims: int) -> list[_Window]:
    """Read `window={size=8x2 stride=7x1 pad=0_0x1_1 lhs_dilate=8x1}`; all but the size may be missing."""
    match = re.search(r"window=\{([^}]*)\}", op.attributes)
    fields = dict(field.split("=") for field in match[1].split()) if match else {}

    def values(name: str, default: int) -> list[int]:
        if name not in fields:
            return [default] * num_dims
        return [int(number.split("_")[0]) for number in fields[name].split("x")]

    columns = (values(*field) for field in _Window._field_defaults.items())
    return [_Window(*window) for window in zip(*columns, strict=True)]


def _places_on_input(size: int, window_size: int, places: int, window: _Window) -> int:
    """Return the number of pairs of a window's place and an element in it that meet the input."""
    offsets = np.arange(window_size) * window.rhs_dilate - window.pad
    positions = np.arange(places)[:, None] * window.stride + offsets
    is_element = (positions >= 0) & (positions % window.lhs_dilate == 0)
    return int(np.sum(is_element & (positions // window.lhs_dilate < size)))


def _shape(type_: str) -> tuple[int, ...]:
    """Return the shape of the first array in a type."""
    return next(arrays(type_))[0]


def _ints(op: Instruction, pattern: str) -> list[int]:
    match = re.search(pattern, op.attributes)
    return [int(number) for number in re.findall(r"\d+", match[1])] if match else []
