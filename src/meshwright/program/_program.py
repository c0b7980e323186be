"""A jaxpr as a plain list of operations: calls inlined, dead code removed, loops with bodies.

    jit[f](x) -> y                 the operations of f
    scan[body](a, b) -> c          one operation with a body, and with ties at its inputs and outputs

Values inside a body differ from those outside; ties connect two values that are the same array.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

Jaxpr = Any
Equation = Any
"""A `jax.extend.core.JaxprEqn`, whose type does not state the shapes of arrays."""
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
_NOT_INLINED = ("scan", "while", "cond", "shard_map", "pallas_call")


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
    """The value that gets it."""
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

    @property
    def turns(self) -> int:
        return self.eqn.params["length"] if self.kind == "scan" else 1

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
        found = scope.search(self.scope)
        return 1.0 if found is None else int(found[1]) / int(found[2])

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


def jaxprs_in(params: Mapping[str, Any]) -> Iterator[Jaxpr]:
    """Return the jaxprs among the parameters of an equation, such as the body of a loop."""
    return _finder()(params)


@cache
def _finder() -> Callable[[Mapping[str, Any]], Iterator[Jaxpr]]:
    from jax.extend.core import jaxprs_in_params  # here, as it loads Pallas, which takes some 40 ms

    return jaxprs_in_params


def equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yield all equations of a jaxpr; those inside another follow it.

    A jaxpr that several equations call is looked into once.

    Example:
      >>> jaxpr = jax.make_jaxpr(jax.jit(jnp.sin))(1.0)
      >>> [eqn.primitive.name for eqn in mw.program._internal.equations(jaxpr.jaxpr)]
      ['jit', 'sin']
    """
    return _new_equations(jaxpr, set())


def _new_equations(jaxpr: Jaxpr, met: set[int]) -> Iterator[Equation]:
    """Yield the equations of a jaxpr, and of those inside that are not yet met."""
    for eqn in _open(jaxpr).eqns:
        yield eqn
        for inner in jaxprs_in(eqn.params):
            if id(_open(inner)) not in met:
                met.add(id(_open(inner)))
                yield from _new_equations(inner, met)


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
    inputs, operations = [_value(var) for var in _open(jaxpr).invars], list[Operation]()
    return Program(inputs, _inlined(jaxpr, inputs, operations, callers), operations)


def _inlined(
    jaxpr: Jaxpr, inputs: Iterable[Value], operations: list[Operation], callers: _Callers
) -> list[Value]:
    """Append the operations of `jaxpr` on `inputs`, and return its results."""
    jaxpr = _open(jaxpr)
    known: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))

    def value(atom: Any) -> Value:
        is_literal = hasattr(atom, "val")
        return _value(atom) if is_literal or atom not in known else known[atom]

    known |= {var: _value(var) for var in getattr(jaxpr, "constvars", ())}
    for eqn in jaxpr.eqns:
        arguments = [value(atom) for atom in eqn.invars]
        call = _call(eqn, arguments)
        if call is None:
            results = [_value(var) for var in eqn.outvars]
            operations += _operations(eqn, arguments, results, callers)
        else:
            results = _inlined(*call, operations, callers.inside(eqn))
        known.update(zip(eqn.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _call(eqn: Equation, arguments: list[Value]) -> tuple[Jaxpr, list[Value]] | None:
    """Return the jaxpr that an equation calls, with the arguments; None if it is not a call."""
    if not eqn.params or eqn.primitive.name in _NOT_INLINED:
        return None
    if eqn.primitive.name == "custom_linear_solve":
        return _solve(eqn, arguments)
    for jaxpr in map(_open, jaxprs_in(eqn.params)):
        if _shapes(jaxpr.invars) == _shapes(eqn.invars) and _shapes(jaxpr.outvars) == _shapes(eqn.outvars):
            return jaxpr, arguments
    return None


def _solve(eqn: Equation, arguments: list[Value]) -> tuple[Jaxpr, list[Value]]:
    """Return the jaxpr that solves a linear system. The equation also holds the jaxprs of its gradient."""
    lengths = eqn.params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    constants, right = arguments[start : start + lengths.solve], arguments[sum(lengths) :]
    return eqn.params["jaxprs"].solve, [*constants, *right]


def _operations(
    eqn: Equation, inputs: list[Value], outputs: list[Value], callers: _Callers
) -> list[Operation]:
    """Return the operations of an equation: one, or a copy for each array that `device_put` is given."""
    if eqn.primitive.name != "device_put":
        return [_operation(eqn, inputs, outputs, callers)]
    return [_operation(eqn, [x], [y], callers) for x, y in zip(inputs, outputs, strict=True)]


def _operation(eqn: Equation, inputs: list[Value], outputs: list[Value], callers: _Callers) -> Operation:
    inside = callers.inside(eqn)
    operation = Operation(eqn, eqn.primitive.name, inputs, outputs, callers.equations, inside.scope)
    if operation.kind == "scan":
        _tie_scan(operation)
    elif operation.kind == "while":
        _tie_while(operation)
    elif operation.kind == "cond":
        is_seldom = _SELDOM in str(eqn.source_info.name_stack)
        for branch in eqn.params["branches"][: 1 if is_seldom else None]:
            _tie_body(operation, branch, inputs[1:], outputs)
    elif operation.kind == "shard_map":
        operation.bodies = (_program(eqn.params["jaxpr"], inside),)
    return operation


def _tie_scan(scan: Operation) -> None:
    """Tie the values of a scan.

    Shapes show what is carried and what is sliced: JAX's parameters for it change.
    """
    body = _tie_body(scan, scan.eqn.params["jaxpr"], scan.inputs, scan.outputs)
    num_whole = sum(not tie.source_stacked for tie in scan.entering)
    num_carried = sum(not tie.target_stacked for tie in scan.leaving)
    again = body.inputs[num_whole - num_carried : num_whole]
    scan.carried = tuple(map(Tie, body.outputs[:num_carried], again))


def _tie_while(loop: Operation) -> None:
    params, inputs = loop.eqn.params, loop.inputs
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    _tie_body(loop, params["cond_jaxpr"], [*inputs[:num_cond], *inputs[num_cond + num_body :]], [])
    body = _tie_body(loop, params["body_jaxpr"], inputs[num_cond:], loop.outputs)
    loop.carried = tuple(map(Tie, body.outputs, body.inputs[num_body:]))


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
    needed, kept = set(program.outputs), []
    for operation in reversed(program.operations):
        if operation.eqn.effects or not needed.isdisjoint(operation.outputs):
            if operation.bodies:
                _drop_results(operation, needed)
            needed.update(operation.inputs)
            kept.append(operation)
    program.operations = kept[::-1]
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
    read = {x for body in operation.bodies for of in body.operations for x in of.inputs}
    read.update(tie.target for tie in operation.carried)
    read.update(x for body in operation.bodies for x in body.outputs)
    operation.entering = [tie for tie in operation.entering if tie.target in read]
    entering = {tie.source for tie in operation.entering}
    operation.inputs = [x for x in operation.inputs if x in entering or not x.shape]


def _value(atom: Any) -> Value:
    aval = atom.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    on_host = getattr(getattr(aval, "memory_space", None), "name", "") == "Host"
    return Value(_shape(atom), itemsize, on_host=on_host)


def _shapes(atoms: Iterable[Any]) -> list[tuple[int, ...]]:
    return list(map(_shape, atoms))


def _shape(atom: Any) -> tuple[int, ...]:
    """Return the shape of an array; tokens and similar values have none."""
    return tuple(getattr(atom.aval, "shape", ()))


def _open(jaxpr: Jaxpr) -> Jaxpr:
    """Return the jaxpr inside a closed one; JAX 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)
