"""What each kernel of a compiled step computes, and what it reads and writes of a device's memory.

A fusion is one kernel: what is made and used inside of it stays on the chip.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from meshwright.hlo._collectives import exchanging, kind_of
from meshwright.hlo._executions import Execution, executions
from meshwright.hlo._products import hlo_flops
from meshwright.hlo._program import Computation, Instruction, Program, memory_bytes, parse, root_of

NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"),
    *("partition-id", "replica-id", "add-dependency", "domain"),
    *("while", "conditional", "call", "async-start"),  # what they call is
}
SLICES = {"slice", "dynamic-slice", "gather"}
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Those that change some of their first operand where it is, and which operand is what they put there."""
NOTHING = {"AllocateBuffer", "AsyncCollectiveDone"}
"""Custom calls that move nothing: of the second, the fusions before it did."""


@dataclass(frozen=True)
class Kernel:
    """One instruction of a program that a device runs as a whole."""

    name: str
    """As in profiles."""
    opcode: str
    times: int
    """How often a step runs it, the turns of all loops around it multiplied."""
    flops: int
    """Floating-point operations of the matrix products in it, of one time."""
    nbytes: int
    """What it reads and writes of the device's memory, of one time."""
    source: str
    """Which operation of the traced function it comes from; "" where the compiler does not say."""
    in_open_loop: bool = False
    """It is in a loop whose number of turns is not known, and `times` is for one turn."""


def kernels(hlo: str) -> list[Kernel]:
    """Return what a device runs in a step, from the text of the compiled program.

    - Operands are read and results written once each: caches are not known of.
    - Of what is sliced, gathered, scattered or updated in place, alone or in a fusion, the part counts.
    - On TPUs what the compiler keeps on the chip (VMEM) is free, and bringing it there counts.
    - Products are dots, convolutions and calls of cuBLAS; not of cuDNN, nor kernels of one's own (Pallas,
      Triton), for whose operations see `count_flops`.
    - Of the branches of a condition only the one that makes the most bytes counts.
    """
    program = parse(hlo)
    return [kernel for run in executions(program) for kernel in _kernels(program, run)]


def memory_traffic(hlo: str) -> int:
    """Return the bytes that a device reads from and writes to its memory in a step: see `kernels`."""
    return sum(kernel.times * kernel.nbytes for kernel in kernels(hlo))


class _Fusion(NamedTuple):
    inner: Computation
    going_on: frozenset[str]
    """Collectives that were begun in an earlier fusion, which counts them."""


def _kernels(program: Program, run: Execution) -> Iterator[Kernel]:
    begun = {(each.caller.name, each.op.name) for each in exchanging(program, run)}
    for op in run.computation.values():
        if not _is_kernel(op):
            continue
        if inner := program.fused(op):
            going_on = {each.name for each in inner.values() if kind_of(each)} - {
                name for caller, name in begun if caller == op.name
            }
            nbytes = _fusion_bytes(_Fusion(inner, frozenset(going_on)))
        else:
            nbytes = _bytes(op, run.computation)
        flops = hlo_flops(program, run.computation, op)
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
    return sum(memory_bytes(each.type) for each in operands) + _result_bytes(op, operands)


def _result_bytes(op: Instruction, operands: list[Instruction]) -> int:
    """Return the bytes of the result; that of the first of an async pair has the operands in it as well."""
    result = memory_bytes(op.type)
    if op.opcode == "send" or (op.opcode.endswith("-start") and op.opcode != "all-reduce-start"):
        return result - sum(memory_bytes(each.type) for each in operands)
    return result


def _fusion_bytes(fusion: _Fusion) -> int:
    parameters = [op for op in fusion.inner.values() if op.opcode == "parameter"]
    return sum(_read(op, fusion) for op in parameters) + _written(root_of(fusion.inner), fusion)


def _read(op: Instruction, fusion: _Fusion) -> int:
    """Return what is read of a parameter of a fusion, or of a bitcast of one."""
    uses = [use for use in fusion.inner.values() if op.name in use.operands]
    return min(memory_bytes(op.type), sum(_read_by(use, op, fusion) for use in uses))


def _read_by(use: Instruction, op: Instruction, fusion: _Fusion) -> int:
    is_first = use.operands[0] == op.name
    if use.opcode == "bitcast":
        return _read(use, fusion)
    if use.opcode in SLICES and is_first:
        return memory_bytes(use.type)
    if use.opcode == "tuple" or (use.opcode in UPDATES and is_first) or _is_elsewhere(use, fusion):
        return 0
    return memory_bytes(op.type)


def _written(op: Instruction, fusion: _Fusion) -> int:
    """Return what is written of a result of a fusion, or of all in a tuple of such."""
    operands = [fusion.inner[name] for name in op.operands]
    if op.opcode == "parameter" or _is_elsewhere(op, fusion):
        return 0
    if op.opcode == "tuple":
        return sum(_written(each, fusion) for each in operands)
    if op.opcode == "bitcast":
        return min(memory_bytes(op.type), _written(operands[0], fusion))
    if op.opcode in UPDATES:
        return min(memory_bytes(op.type), memory_bytes(operands[UPDATES[op.opcode]].type))
    return memory_bytes(op.type)


def _is_elsewhere(op: Instruction, fusion: _Fusion) -> bool:
    return op.name in fusion.going_on or _is_nothing(op)
