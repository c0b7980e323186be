"""The inputs of a program that have an influence on a result: a walk from the result backwards."""

from collections.abc import Iterable

from meshwright.program._program import Operation, Program, Value


def influences(program: Program, results: Iterable[Value]) -> set[Value]:
    """Return all values of a program that some results are computed from, the results included.

    A value that only decides how often a loop runs, or which branch is taken, is one of them. So is one
    whose gradient is stopped. Where a program cannot be followed, as inside a kernel, all operands count.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x, y: (2 * x, x + y))(1.0, 1.0)
      >>> program = mw.program._internal.program_of(jaxpr)
      >>> found = mw.program._internal.influences(program, program.outputs[:1])
      >>> [value in found for value in program.inputs]
      [True, False]
    """
    found = set(results)
    for operation in reversed(program.operations):
        if not found.isdisjoint(operation.outputs):
            found |= _operands(operation, found)
    return found


def stacked(program: Program, value: Value, index: int) -> Value:
    """Return the value that is one row of a stack, or the stack itself if its rows are not known."""
    for operation in program.operations:
        if value in operation.outputs and operation.kind in ("stack", "concatenate"):
            rows = operation.inputs
            return rows[index] if len(rows) == value.shape[0] else value
    return value


def _operands(operation: Operation, needed: set[Value]) -> set[Value]:
    """Return the operands that the needed results of one operation are computed from."""
    if not operation.bodies or not operation.entering:
        return set(operation.inputs)
    inside = {tie.source for tie in operation.leaving if tie.target in needed}
    if operation.is_while:  # how often it runs
        inside.update(operation.bodies[0].outputs)
    num_inside = -1
    while num_inside != len(inside):  # until an iteration asks the one before for nothing more
        num_inside = len(inside)
        for body in operation.bodies:
            inside |= influences(body, inside)
        inside.update(tie.source for tie in operation.carried if tie.target in inside)
    operands = {tie.source for tie in operation.entering if tie.target in inside}
    return operands | ({operation.inputs[0]} if operation.is_condition else set())
