"""A jaxpr as a plain list of operations: calls inlined, dead code removed, loops with bodies.

    jit[f](x) -> y                 the operations of f
    scan[body](a, b) -> c          one operation with a body, and with ties at its inputs and outputs

Values inside a body differ from those outside; ties connect two values that are the same array.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.program import _jaxprs as jaxprs
from meshwright.program._dimensions import Rule
from meshwright.program._jaxprs import Equation, Jaxpr, called, is_literal, opened, shape_of
from meshwright.program._primitives import Primitive, primitive_of, rule_of
from meshwright.program._products import GROUPS, Work

_TICKS = re.compile(r"busy_(\d+)_of_(\d+)_ticks")
"""The scope of a pipeline's stages, as `mw.make_step` names it."""
_USED = re.compile(r"used_(\d+)_of_(\d+)_rows")
"""The scope of products with room for more rows than they compute, as `mw.nn.moe` names it."""
_AGAIN = "computed_again"
"""The scope of stages that are computed again for their gradient, as `mw.make_step` names it."""
_FUSED_ATTENTION = "fused_attention"
"""Name of the scope (`jax.named_scope`) of attention in blocks, which hardware may run as one kernel."""
_SELDOM = "seldom"
"""Name of the scope of a condition whose second branch, that for True, is seldom taken: it is left out."""


@dataclass(eq=False, slots=True)
class Value:
    """An array of a program, identified by object identity."""

    shape: tuple[int, ...]
    """Shape of the array."""
    itemsize: float
    """Bytes of one element."""
    name: str = ""
    """Name of the parameter, if it is one."""
    on_host: bool = False
    """True if it is in the host's memory."""

    @property
    def nbytes(self) -> int:
        return int(math.prod(self.shape) * self.itemsize)


class Tie(NamedTuple):
    """Two values that are the same array, or one of which is a slice of the other's first dimension."""

    source: Value
    """The value that gives the array."""
    target: Value
    """The value inside or in the next iteration, or the result, that receives `source`."""
    source_stacked: bool = False
    """True if the target is a slice of the source."""
    target_stacked: bool = False
    """True if the source is a slice of the target."""


@dataclass(eq=False)
class Program:
    """A list of operations in order.

    Example:
      >>> jaxpr = jax.make_jaxpr(jax.jit(jnp.dot))(jnp.ones((2, 3)), jnp.ones(3))
      >>> program = mw.program._internal.program_of(jaxpr)
      >>> [operation.kind for operation in program.operations]
      ['dot_general']
    """

    inputs: list[Value]
    """Inputs of the program."""
    outputs: list[Value]
    """Results of the program."""
    operations: "list[Operation]"


@dataclass(eq=False, slots=True)
class Operation:
    """An equation that is not a call."""

    eqn: Equation
    """The equation of the jaxpr."""
    kind: str
    """Name of its primitive."""
    inputs: list[Value]
    """Operands."""
    outputs: list[Value]
    """Results."""
    callers: tuple[Equation, ...] = ()
    """Calls and loops that contain it, the outermost first."""
    scope: str = ""
    """The scopes of its callers and its own (`jax.named_scope`), which show in profiles."""
    bodies: Sequence[Program] = ()
    """The body of a loop, the branches of a condition, or the program of each device in `shard_map`."""
    entering: Sequence[Tie] = ()
    """Ties from its inputs to the inputs of its bodies."""
    leaving: Sequence[Tie] = ()
    """Ties from the outputs of its bodies to its own outputs."""
    carried: Sequence[Tie] = ()
    """Ties from the outputs of one iteration to the inputs of the next."""
    primitive: Primitive = field(init=False)
    """The row of its primitive in the table."""

    def __post_init__(self) -> None:
        self.primitive = primitive_of(self.kind)

    @property
    def rule(self) -> Rule:
        """The correspondence between the dimensions of operands and results, if it has no bodies.

        Example:
          >>> jaxpr = jax.make_jaxpr(jnp.transpose)(jnp.ones((8, 4)))
          >>> rule = mw.program._internal.program_of(jaxpr).operations[0].rule
          >>> rule.inputs, rule.outputs
          ([((0,), (1,))], [((1,), (0,))])
        """
        inputs, outputs = (tuple([x.shape for x in values]) for values in (self.inputs, self.outputs))
        return rule_of(self.kind, self.eqn.params, inputs, outputs)

    @property
    def work(self) -> Work | None:
        """Floating-point operations of a matrix product, unused rows included; None for all else."""
        count = self.primitive.work
        return None if count is None else count(self.eqn, self.rule)

    @property
    def num_groups(self) -> int:
        """The number of groups of rows of a ragged product, such as those of each expert; 0 for all else."""
        return self.inputs[2].shape[-1] if self.primitive.product == "ragged_dot" else 0

    @property
    def has_matrices(self) -> bool:
        """True for a ragged product of rows and matrices of groups, and False for the gradient of these."""
        return GROUPS in self.rule.summed

    @property
    def turns(self) -> int:
        return jaxprs.num_turns(self.eqn)

    @property
    def is_while(self) -> bool:
        return self.kind == "while"

    @property
    def is_condition(self) -> bool:
        return self.kind == "cond"

    @property
    def is_mapped(self) -> bool:
        """True for a `shard_map`."""
        return self.kind == "shard_map"

    @property
    def is_constraint(self) -> bool:
        """True for a constraint on the sharding of its operand."""
        return self.kind == "sharding_constraint"

    @property
    def is_copy_to_host_or_back(self) -> bool:
        return self.kind == "device_put" and self.inputs[0].on_host != self.outputs[0].on_host

    @property
    def is_lookup(self) -> bool:
        return self.kind == "gather"

    @property
    def values(self) -> list[Value]:
        return [*self.inputs, *self.outputs]

    @property
    def is_recomputed(self) -> bool:
        """True if `jax.checkpoint` or 1F1B computes it a second time, as the name in profiles shows."""
        return "rematted_computation" in self.scope or (_AGAIN in self.scope and not self.is_backward)

    @property
    def is_backward(self) -> bool:
        """True if it belongs to the backward pass of a gradient, as the name in profiles shows."""
        return "transpose(" in self.scope

    @property
    def idle_share(self) -> float:
        """The share of its executions in which the devices of a pipeline wait, by the name of its scope."""
        return 1 - self._share(_TICKS)

    @property
    def used_share(self) -> float:
        """The share of its rows that a product computes, by the name of its scope."""
        return self._share(_USED)

    def _share(self, scope: re.Pattern[str]) -> float:
        """Return the quotient of the two numbers in the name of its scope; 1 without such a scope."""
        match = scope.search(self.scope)
        return 1.0 if match is None else int(match[1]) / int(match[2])

    @property
    def is_fused_attention(self) -> bool:
        """True if it stands for a part of a fused attention kernel, by the name of its scope."""
        return _FUSED_ATTENTION in self.scope


def program_of(jaxpr: Jaxpr, names: Sequence[str] = ()) -> Program:
    """Return the program of a jaxpr, closed or not."""
    program = _program(jaxpr, _Callers())
    for value, name in zip(program.inputs, names, strict=False):
        value.name = name
    return _needed(program)


def walk(program: Program) -> Iterator[Operation]:
    """Yield all operations of a program; those of bodies follow the operation that holds them.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: jnp.sin(x), x))(1.0)
      >>> program = mw.program._internal.program_of(jaxpr)
      >>> "sin" in [operation.kind for operation in mw.program._internal.walk(program)]
      True
    """
    for operation in program.operations:
        yield operation
        for body in operation.bodies:
            yield from walk(body)


class _Callers(NamedTuple):
    """The calls and loops that contain an equation, and their scopes."""

    equations: tuple[Equation, ...] = ()
    scope: str = ""

    def inside(self, eqn: Equation) -> "_Callers":
        """Return the callers of what an equation contains."""
        return _Callers((*self.equations, eqn), f"{self.scope}/{eqn.source_info.name_stack}")


def _program(jaxpr: Jaxpr, callers: _Callers) -> Program:
    inputs, operations = list(map(_value, opened(jaxpr).invars)), list[Operation]()
    return Program(inputs, _inlined(jaxpr, inputs, operations, callers), operations)


def _inlined(
    jaxpr: Jaxpr, inputs: Iterable[Value], operations: list[Operation], callers: _Callers
) -> list[Value]:
    """Append the operations of `jaxpr` on `inputs`, and return its results."""
    jaxpr = opened(jaxpr)
    values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    values |= {var: _value(var) for var in getattr(jaxpr, "constvars", ())}

    def value(atom: Any) -> Value:
        return _value(atom) if is_literal(atom) or atom not in values else values[atom]

    for eqn in jaxpr.eqns:
        arguments = list(map(value, eqn.invars))
        call = called(eqn)
        if call is None:
            results = list(map(_value, eqn.outvars))
            operations += _operations(eqn, arguments, results, callers)
        else:
            arguments = [arguments[i] for i in call.operands]
            results = _inlined(call.jaxpr, arguments, operations, callers.inside(eqn))
        values.update(zip(eqn.outvars, results, strict=True))
    return list(map(value, jaxpr.outvars))


def _operations(
    eqn: Equation, inputs: list[Value], outputs: list[Value], callers: _Callers
) -> list[Operation]:
    """Return the operations of an equation: one, or a copy for each array that `device_put` is given."""
    if eqn.primitive.name != "device_put":
        return [_operation(eqn, inputs, outputs, callers)]
    return [_operation(eqn, [x], [y], callers) for x, y in zip(inputs, outputs, strict=True)]


def _operation(eqn: Equation, inputs: list[Value], outputs: list[Value], callers: _Callers) -> Operation:
    kind, scope = eqn.primitive.name, callers.inside(eqn).scope
    operation = Operation(eqn, kind, inputs, outputs, callers.equations, scope)
    if kind in _TIES:
        _TIES[kind](operation)
    return operation


def _tie_scan(operation: Operation) -> None:
    scan = jaxprs.scan_of(operation.eqn)
    body = _tie_body(operation, scan.body, operation.inputs, operation.outputs)
    again = body.inputs[scan.num_consts : scan.num_whole]
    operation.carried = tuple(map(Tie, body.outputs[: scan.num_carry], again))


def _tie_while(operation: Operation) -> None:
    loop, inputs = jaxprs.while_of(operation.eqn), operation.inputs
    num_consts = loop.num_of_condition + loop.num_of_body
    _tie_body(operation, loop.condition, [*inputs[: loop.num_of_condition], *inputs[num_consts:]], [])
    body = _tie_body(operation, loop.body, inputs[loop.num_of_condition :], operation.outputs)
    operation.carried = tuple(map(Tie, body.outputs, body.inputs[loop.num_of_body :]))


def _tie_branches(operation: Operation) -> None:
    is_seldom = _SELDOM in str(operation.eqn.source_info.name_stack)
    for branch in jaxprs.branches_of(operation.eqn)[: 1 if is_seldom else None]:
        _tie_body(operation, branch, operation.inputs[1:], operation.outputs)


def _add_mapped(operation: Operation) -> None:
    callers = _Callers((*operation.callers, operation.eqn), operation.scope)
    operation.bodies = (_program(jaxprs.body_of(operation.eqn), callers),)


_TIES = {"scan": _tie_scan, "while": _tie_while, "cond": _tie_branches, "shard_map": _add_mapped}
"""The functions that add the bodies of an operation, and tie them to its operands and results."""


def _tie_body(operation: Operation, jaxpr: Jaxpr, inputs: list[Value], outputs: list[Value]) -> Program:
    """Add a body, and tie its inputs and outputs."""
    body = _program(jaxpr, _Callers((*operation.callers, operation.eqn), operation.scope))
    entering, leaving = zip(inputs, body.inputs, strict=True), zip(body.outputs, outputs, strict=False)
    operation.bodies = (*operation.bodies, body)
    operation.entering = (*operation.entering, *(Tie(x, y, len(x.shape) > len(y.shape)) for x, y in entering))
    operation.leaving = (
        *operation.leaving,
        *(Tie(x, y, target_stacked=len(y.shape) > len(x.shape)) for x, y in leaving),
    )
    return body


def _needed(program: Program) -> Program:
    """Remove, in place, operations that neither a result nor an effect needs, as XLA does."""
    needed, operations = set(program.outputs), []
    for operation in reversed(program.operations):
        if operation.eqn.effects or not needed.isdisjoint(operation.outputs):
            if operation.bodies:
                _drop_results(operation, needed)
            needed.update(operation.inputs)
            operations.append(operation)
    program.operations = operations[::-1]
    return program


def _drop_results(operation: Operation, needed: set[Value]) -> None:
    """Remove results that nothing needs, and those of bodies that the next iteration does not use either."""
    tied = {tie.source for tie in operation.leaving}
    if tied:
        operation.outputs = [x for x in operation.outputs if x in needed]
    operation.leaving = [tie for tie in operation.leaving if tie.target in needed]
    used = {tie.source for tie in (*operation.leaving, *operation.carried)}
    for body in operation.bodies:
        body.outputs = [x for x in body.outputs if x in used or x not in tied]
        _needed(body)
    if operation.entering:
        _drop_arguments(operation)


def _drop_arguments(operation: Operation) -> None:
    """Remove inputs of bodies that nothing there reads."""
    read = {x for body in operation.bodies for operation in body.operations for x in operation.inputs}
    read.update(tie.target for tie in operation.carried)
    read.update(x for body in operation.bodies for x in body.outputs)
    operation.entering = [tie for tie in operation.entering if tie.target in read]
    entering = {tie.source for tie in operation.entering}
    operation.inputs = [x for x in operation.inputs if x in entering or not x.shape]


def _value(atom: Any) -> Value:
    aval = atom.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    on_host = getattr(getattr(aval, "memory_space", None), "name", "") == "Host"
    return Value(shape_of(atom), itemsize, on_host=on_host)
