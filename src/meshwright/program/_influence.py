"""The values that a result of a program depends on, and the elements that one element depends on."""

from collections.abc import Iterable, Sequence

from meshwright.program import _jaxprs as jaxprs
from meshwright.program._jaxprs import Equation
from meshwright.program._primitives import rule_of
from meshwright.program._program import Operation, Program, Value

Part = tuple[slice, ...]
"""A part of an array."""


def influences(program: Program, results: Iterable[Value]) -> set[Value]:
    """Return all values of a program that some results are computed from, the results included.

    A value that only decides how often a loop runs, or which branch is taken, is one of them. So is one
    whose gradient is stopped. Where a program cannot be followed, as inside a kernel, all operands count.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x, y: (2 * x, x + y))(1.0, 1.0)
      >>> program = mw.program._internal.program_of(jaxpr)
      >>> influential = mw.program._internal.influences(program, program.outputs[:1])
      >>> [value in influential for value in program.inputs]
      [True, False]
    """
    values = set(results)
    for operation in reversed(program.operations):
        if not values.isdisjoint(operation.outputs):
            values |= _operands(operation, values)
    return values


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
    # The condition decides how often the loop runs.
    if operation.is_while:
        inside.update(operation.bodies[0].outputs)
    num_inside = -1
    # Repeat until an iteration needs no further results of the previous one.
    while num_inside != len(inside):
        num_inside = len(inside)
        for body in operation.bodies:
            inside |= influences(body, inside)
        inside.update(tie.source for tie in operation.carried if tie.target in inside)
    operands = {tie.source for tie in operation.entering if tie.target in inside}
    return operands | ({operation.inputs[0]} if operation.is_condition else set())


def parts_of(eqn: Equation, out: int, index: tuple[int, ...]) -> list[Part]:
    """Return for each operand the slice that an element of a result depends on, or all of it if unknown.

    Example:
      >>> eqn = jax.make_jaxpr(jnp.transpose)(jnp.ones((8, 4))).eqns[0]
      >>> mw.program._internal.parts_of(eqn, 0, (3, 7))
      [(slice(7, 8, None), slice(3, 4, None))]
    """
    shapes = list(map(jaxprs.shape_of, eqn.invars))
    if eqn.primitive.name == "concatenate":
        return _joined(eqn.params["dimension"], shapes, index)
    # The predicate is finite, and the cases have one shape.
    if eqn.primitive.name == "select_n":
        return [tuple(slice(i, i + 1) for i in index) if shape else () for shape in shapes]
    results = tuple(map(jaxprs.shape_of, eqn.outvars))
    rule = rule_of(eqn.primitive.name, eqn.params, tuple(shapes), results)
    letters = {
        dim[0]: (i, size)
        for dim, i, size in zip(rule.outputs[out], index, results[out], strict=True)
        if len(dim) == 1 and rule.is_known
    }
    return [
        tuple(_part(letters.get(dim[0]) if len(dim) == 1 else None, size) for dim, size in zip(dims, shape))  # noqa: B905
        for dims, shape in zip(rule.inputs, shapes, strict=True)
    ]


def _joined(dimension: int, shapes: Sequence[tuple[int, ...]], index: tuple[int, ...]) -> list[Part]:
    parts, start = [], 0
    for shape in shapes:
        inner = list(index)
        inner[dimension] -= start
        is_inside = 0 <= inner[dimension] < shape[dimension]
        parts.append(tuple(slice(i, i + 1) if is_inside else slice(0, 0) for i in inner))
        start += shape[dimension]
    return parts


def _part(element: tuple[int, int] | None, size: int) -> slice:
    """Return the slice of a dimension of some size, given an index in another one and that one's size."""
    if element is None or element[1] != size:
        return slice(None)
    return slice(element[0], element[0] + 1)
