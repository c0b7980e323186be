"""Programs with those inside `jax.shard_map` inlined.

For XLA they are operations like all others: it fuses them with those around, and stores what is between no
longer than it is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.program._internal import Operation, Program, Value

Copies = Mapping[Operation, Sequence[tuple[Value, int]]]
"""For each operation, the operands that are moved or gathered for it, and their bytes then."""


def inlined(program: Program, copies: Copies) -> Program:
    """Return a program in which each `shard_map` is the operations of its body.

    Its operands and results are views of the values inside; an operand that is moved for it is gathered.
    """
    return replace(program, operations=[each for of in program.operations for each in _inlined(of, copies)])


def _inlined(operation: Operation, copies: Copies) -> Iterator[Operation]:
    if not operation.is_mapped:
        yield operation
        return
    (body,) = operation.bodies
    moved = {value for value, _ in copies.get(operation, ())}
    for outside, inside in zip(operation.inputs, body.inputs, strict=True):
        yield _link(operation, "all_gather" if outside in moved else "copy", outside, inside)
    yield from inlined(body, copies).operations
    for inside, outside in zip(body.outputs, operation.outputs, strict=True):
        yield _link(operation, "copy", inside, outside)


def _link(operation: Operation, kind: str, source: Value, target: Value) -> Operation:
    return Operation(operation.eqn, kind, [source], [target], operation.callers, operation.scope)
