"""A jaxpr as a plain list of operations: calls inlined, what nothing needs left out, loops as bodies.

    jit[f](x) -> y                 the operations of f
    scan[body](a, b) -> c          one operation with a body, and with ties: what enters and leaves it

The values of the bodies are other values than those outside; ties say which are the same array.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend.core import Var, jaxprs_in_params

Jaxpr = Any
Equation = Any
"""A `jax.extend.core.JaxprEqn`, whose type says nothing of the shapes of arrays."""
LOOPS = ("scan", "while", "cond")


@dataclass(eq=False)
class Value:
    """An array, known by its identity."""

    shape: tuple[int, ...]
    itemsize: float
    name: str = ""
    """The parameter that it is, perhaps cast, sliced or transposed."""

    @property
    def nbytes(self) -> int:
        return int(math.prod(self.shape) * self.itemsize)


class Tie(NamedTuple):
    """Two values that are one array; or one is a slice of the other along the other's first dimension."""

    source: Value
    target: Value
    source_stacked: bool = False
    target_stacked: bool = False


@dataclass(eq=False)
class Program:
    """Operations one after the other."""

    inputs: list[Value]
    outputs: list[Value]
    operations: "list[Operation]"


@dataclass(eq=False)
class Operation:
    """One equation."""

    eqn: Equation
    inputs: list[Value]
    outputs: list[Value]
    bodies: list[Program] = field(default_factory=list)
    """Of a loop; of a condition, its branches."""
    ties: list[Tie] = field(default_factory=list)
    """Before, between and after the turns of a loop."""
    turn_ties: list[Tie] = field(default_factory=list)
    """From one turn to the next."""

    @property
    def kind(self) -> str:
        return self.eqn.primitive.name

    @property
    def turns(self) -> int:
        return self.eqn.params["length"] if self.kind == "scan" else 1

    @property
    def values(self) -> list[Value]:
        return [*self.inputs, *self.outputs]


def program_of(jaxpr: Jaxpr, names: Sequence[str] = ()) -> Program:
    """Return the program of a jaxpr, with names for its first inputs."""
    inputs = [_value(var) for var in _open(jaxpr).invars]
    for value, name in zip(inputs, names, strict=False):
        value.name = name
    return _needed(_program(jaxpr, inputs))


def _program(jaxpr: Jaxpr, inputs: list[Value]) -> Program:
    operations: list[Operation] = []
    return Program(inputs, _inlined(jaxpr, inputs, operations), operations)


def _inlined(jaxpr: Jaxpr, inputs: list[Value], operations: list[Operation]) -> list[Value]:
    """Append the operations of `jaxpr` on `inputs`, and return its results."""
    jaxpr = _open(jaxpr)
    known: dict[Var, Value] = dict(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Value:
        return known[atom] if isinstance(atom, Var) and atom in known else _value(atom)

    known |= {var: _value(var) for var in getattr(jaxpr, "constvars", ())}
    for eqn in jaxpr.eqns:
        arguments = [value(atom) for atom in eqn.invars]
        called = _called(eqn)
        if called is None:
            results = [_value(var) for var in eqn.outvars]
            operations.append(_operation(eqn, arguments, results))
        else:
            results = _inlined(called, arguments, operations)
        known.update(zip(eqn.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _called(eqn: Equation) -> Jaxpr | None:
    if eqn.primitive.name in (*LOOPS, "shard_map", "pallas_call"):
        return None
    for jaxpr in jaxprs_in_params(eqn.params):
        jaxpr = _open(jaxpr)
        shapes = [[var.aval.shape for var in of] for of in (jaxpr.invars, jaxpr.outvars)]
        if shapes == [[var.aval.shape for var in of] for of in (eqn.invars, eqn.outvars)]:
            return jaxpr
    return None


def _operation(eqn: Equation, inputs: list[Value], outputs: list[Value]) -> Operation:
    operation = Operation(eqn, inputs, outputs)
    if eqn.primitive.name == "scan":
        _tie_scan(operation)
    elif eqn.primitive.name == "while":
        _tie_while(operation)
    elif eqn.primitive.name == "cond":
        for branch in eqn.params["branches"]:
            _tie_body(operation, _body(branch), inputs[1:], outputs)
    elif eqn.primitive.name == "shard_map":
        operation.bodies = [_body(eqn.params["jaxpr"])]
    return operation


def _tie_scan(scan: Operation) -> None:
    """What is carried and what is sliced is read off the shapes: JAX's parameters for it change."""
    body = _body(scan.eqn.params["jaxpr"])
    _tie_body(scan, body, scan.inputs, scan.outputs)
    whole = sum(
        len(outer.shape) == len(inner.shape) for outer, inner in zip(scan.inputs, body.inputs, strict=True)
    )
    carried = sum(
        len(outer.shape) == len(inner.shape) for outer, inner in zip(scan.outputs, body.outputs, strict=True)
    )
    scan.turn_ties += map(Tie, body.outputs[:carried], body.inputs[whole - carried : whole])


def _tie_while(loop: Operation) -> None:
    params, inputs = loop.eqn.params, loop.inputs
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    cond, body = _body(params["cond_jaxpr"]), _body(params["body_jaxpr"])
    carried = inputs[num_cond + num_body :]
    _tie_body(loop, cond, [*inputs[:num_cond], *carried], [])
    _tie_body(loop, body, inputs[num_cond:], loop.outputs)
    loop.turn_ties += map(Tie, body.outputs, body.inputs[num_body:])


def _tie_body(operation: Operation, body: Program, inputs: list[Value], outputs: list[Value]) -> None:
    """Tie what enters and leaves, and keep the body."""
    operation.bodies.append(body)
    for outer, inner in zip(inputs, body.inputs, strict=True):
        operation.ties.append(Tie(outer, inner, source_stacked=len(outer.shape) > len(inner.shape)))
    for outer, inner in zip(outputs, body.outputs, strict=False):
        operation.ties.append(Tie(inner, outer, target_stacked=len(outer.shape) > len(inner.shape)))


def _body(jaxpr: Jaxpr) -> Program:
    return _program(jaxpr, [_value(var) for var in _open(jaxpr).invars])


def _needed(program: Program) -> Program:
    """Leave out, in place, what neither a result nor an effect needs, as XLA does."""
    needed, kept = set(program.outputs), []
    for operation in reversed(program.operations):
        if operation.eqn.effects or not needed.isdisjoint(operation.outputs):
            _drop_results(operation, needed)
            needed.update(operation.inputs)
            kept.append(operation)
    program.operations = kept[::-1]
    return program


def _drop_results(operation: Operation, needed: set[Value]) -> None:
    """Leave out of the bodies what no needed result nor the next turn comes from."""
    tied = {tie.source for tie in operation.ties}
    operation.ties = [x for x in operation.ties if x.target not in operation.outputs or x.target in needed]
    used = {tie.source for tie in (*operation.ties, *operation.turn_ties)}
    for body in operation.bodies:
        body.outputs = [x for x in body.outputs if x in used or x not in tied]
        _needed(body)
    if operation.ties:
        _drop_arguments(operation)


def _drop_arguments(operation: Operation) -> None:
    """Leave out what enters the bodies and is not read there."""
    again = {tie.target for tie in operation.turn_ties}
    read = {x for body in operation.bodies for of in body.operations for x in of.inputs}
    read |= again.union(*(body.outputs for body in operation.bodies))
    operation.ties = [x for x in operation.ties if x.source not in operation.inputs or x.target in read]
    entering = {tie.source for tie in operation.ties}
    operation.inputs = [x for x in operation.inputs if x in entering or not x.shape]


def _value(atom: Any) -> Value:
    aval = atom.aval
    return Value(tuple(getattr(aval, "shape", ())), _itemsize(getattr(aval, "dtype", None)))


def _itemsize(dtype: Any) -> float:
    return getattr(dtype, "itemsize", 0)


def _open(jaxpr: Jaxpr) -> Jaxpr:
    """Return the jaxpr in a closed one; JAX 0.12 has but one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def walk(program: Program) -> Iterable[Operation]:
    """Yield all operations, those of bodies after the one that they are of."""
    for operation in program.operations:
        yield operation
        for body in operation.bodies:
            yield from walk(body)
