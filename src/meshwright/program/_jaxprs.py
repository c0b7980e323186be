"""Equations of a jaxpr, read: what one calls, repeats or contains, and which operands go where inside.

    jit, custom_jvp_call, …   `called`: one jaxpr for all operands and all results
    scan, while, cond         `scan_of`, `while_of`, `branches_of`
    shard_map                 `mapped_of`: the program of one device
    checkpoint                `settings_of`

JAX's versions differ in the names of primitives and parameters, and in whether a jaxpr is closed. Only this
package knows these (`docs/design.md` lists the exceptions); here is what concerns equations inside others,
and in `_primitives.py` what all others do to dimensions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from jax.sharding import NamedSharding, PartitionSpec

Jaxpr = Any
"""A jaxpr, closed or not."""
Equation = Any
"""A `jax.extend.core.JaxprEqn`, whose type does not state the shapes of arrays."""
Test = Callable[[Equation], bool]

STACK = "stack_of_layers"
"""The name of the call that `mw.nn.layers` makes on a mesh with the axis of stages."""
_CALLS = ("jit", "pjit")
_CHECKPOINTS = ("checkpoint", "remat", "remat2")
_NO_CALLS = ("scan", "while", "cond", "shard_map", "pallas_call")


def opened(jaxpr: Jaxpr) -> Jaxpr:
    """Return the jaxpr inside a closed one; JAX 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def constants(jaxpr: Jaxpr) -> dict[Any, Any]:
    """Return the values of a closed jaxpr's constants, by variable."""
    names = getattr(opened(jaxpr), "constvars", ())
    return dict(zip(names, getattr(jaxpr, "consts", ()), strict=False))


def avals_of(jaxpr: Jaxpr) -> list[Any]:
    """Return the types of a jaxpr's inputs, to trace for."""
    return [var.aval for var in opened(jaxpr).invars]


def is_literal(atom: Any) -> bool:
    """Return whether an operand is a literal, which cannot be looked up, rather than a variable."""
    return hasattr(atom, "val")


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Return those of some operands that are no literals."""
    return [atom for atom in atoms if not is_literal(atom)]


def shape_of(atom: Any) -> tuple[int, ...]:
    """Return the shape of an array; tokens and similar values have none."""
    return tuple(getattr(atom.aval, "shape", ()))


def _shapes(atoms: Iterable[Any]) -> list[tuple[int, ...]]:
    return list(map(shape_of, atoms))


def inside(eqn: Equation) -> Iterator[Jaxpr]:
    """Return the jaxprs among the parameters of an equation, such as the body of a loop."""
    return _finder()(eqn.params)


@cache
def _finder() -> Callable[[Mapping[str, Any]], Iterator[Jaxpr]]:
    # Imported here, as it loads Pallas, which takes some 40 ms.
    from jax.extend.core import jaxprs_in_params

    return jaxprs_in_params


def equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Yield all equations of a jaxpr; those inside another follow it.

    A jaxpr that several equations call is looked into once.

    Example:
      >>> jaxpr = jax.make_jaxpr(jax.jit(jnp.sin))(1.0)
      >>> [eqn.primitive.name for eqn in mw.program._internal.jaxprs.equations(jaxpr.jaxpr)]
      ['jit', 'sin']
    """
    return _new_equations(jaxpr, set())


def _new_equations(jaxpr: Jaxpr, met: set[int]) -> Iterator[Equation]:
    """Yield the equations of a jaxpr, and of those inside that are not yet met."""
    for eqn in opened(jaxpr).eqns:
        yield eqn
        for inner in inside(eqn):
            if id(opened(inner)) not in met:
                met.add(id(opened(inner)))
                yield from _new_equations(inner, met)


def holds(eqn: Equation, test: Test) -> bool:
    """Return whether `test` is true of an equation or of any equation inside it."""
    return test(eqn) or any(test(inner) for jaxpr in inside(eqn) for inner in equations(jaxpr))


def map_inside(eqn: Equation, change: Callable[[Equation], Equation]) -> Equation:
    """Return an equation with those of the jaxprs in its parameters changed."""

    def changed(value: Any) -> Any:
        if hasattr(value, "eqns"):
            return map_equations(value, change)
        if not isinstance(value, tuple) or not any(_finder()({"": value})):
            return value
        parts = map(changed, value)
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)

    return eqn.replace(params={name: changed(value) for name, value in eqn.params.items()})


def map_equations(jaxpr: Jaxpr, change: Callable[[Equation], Equation]) -> Jaxpr:
    """Return a jaxpr with its equations changed, closed or not as it was."""
    inner = opened(jaxpr)
    new = inner.replace(eqns=[change(eqn) for eqn in inner.eqns])
    return new if inner is jaxpr else jaxpr.replace(jaxpr=new)


def needed(jaxpr: Jaxpr, atoms: Iterable[Any], *, without: Equation | None = None) -> set[Any]:
    """Return the variables that some depend on, with these; but not through the equation `without`."""
    names = set(variables(atoms))
    for eqn in reversed(opened(jaxpr).eqns):
        if eqn is not without and names.intersection(eqn.outvars):
            names.update(variables(eqn.invars))
    return names


def reached(jaxpr: Jaxpr, atoms: Iterable[Any]) -> set[Any]:
    """Return the variables that depend on some, with these."""
    names = set(atoms)
    for eqn in opened(jaxpr).eqns:
        if names.intersection(variables(eqn.invars)):
            names.update(eqn.outvars)
    return names


def is_call(eqn: Equation) -> bool:
    """Return whether an equation calls its body, and does no more."""
    return eqn.primitive.name in _CALLS


def is_stack(eqn: Equation) -> bool:
    """Return whether an equation is the call of `mw.nn.layers`, whose body contains the scan over layers."""
    return is_call(eqn) and eqn.params.get("name") == STACK


def is_checkpoint(eqn: Equation) -> bool:
    """Return whether an equation is a call of `jax.checkpoint`."""
    return eqn.primitive.name in _CHECKPOINTS


def is_scan(eqn: Equation) -> bool:
    return eqn.primitive.name == "scan"


def is_while(eqn: Equation) -> bool:
    return eqn.primitive.name == "while"


def is_condition(eqn: Equation) -> bool:
    return eqn.primitive.name == "cond"


def is_mapped(eqn: Equation) -> bool:
    return eqn.primitive.name == "shard_map"


def body_of(eqn: Equation) -> Jaxpr:
    """Return the one jaxpr of a call, a checkpoint, a scan, a shard_map or a kernel."""
    return eqn.params["jaxpr"]


class Call(NamedTuple):
    """A jaxpr that an equation calls for all of its results."""

    jaxpr: Jaxpr
    operands: Sequence[int]
    """The numbers of the operands that it gets."""


def called(eqn: Equation) -> Call | None:
    """Return the jaxpr that an equation calls; None if it is not a call."""
    name = eqn.primitive.name
    if not eqn.params or name in _NO_CALLS:
        return None
    # A linear solve also holds the jaxprs of its gradient, and their operands.
    if name == "custom_linear_solve":
        lengths = eqn.params["const_lengths"]
        start = lengths.matvec + lengths.vecmat
        right = range(sum(lengths), len(eqn.invars))
        return Call(eqn.params["jaxprs"].solve, [*range(start, start + lengths.solve), *right])
    for jaxpr in inside(eqn):
        inner = opened(jaxpr)
        if _shapes(inner.invars) == _shapes(eqn.invars) and _shapes(inner.outvars) == _shapes(eqn.outvars):
            return Call(jaxpr, range(len(eqn.invars)))
    return None


class Scan(NamedTuple):
    """A scan. Its operands are constants, then what is carried, then what is sliced."""

    body: Jaxpr
    num_consts: int
    num_carry: int
    """The number of operands, and of results, that each iteration hands to the next."""
    turns: range
    """The numbers of the slices in the order in which the iterations take them."""

    @property
    def num_whole(self) -> int:
        """The number of operands that are not sliced."""
        return self.num_consts + self.num_carry


def scan_of(eqn: Equation) -> Scan:
    """Return the parts of a scan.

    Shapes show what is carried and what is sliced: JAX's parameters for it change.
    """
    body, turns = body_of(eqn), range(eqn.params["length"])
    num_carry = _num_whole(eqn.outvars, opened(body).outvars)
    num_consts = _num_whole(eqn.invars, opened(body).invars) - num_carry
    return Scan(body, num_consts, num_carry, turns[::-1] if eqn.params["reverse"] else turns)


def _num_whole(outside: Iterable[Any], inside: Iterable[Any]) -> int:
    return sum(len(shape_of(x)) == len(shape_of(y)) for x, y in zip(outside, inside, strict=True))


def num_turns(eqn: Equation) -> int:
    """Return the number of iterations of a scan; 1 for all else."""
    return eqn.params["length"] if is_scan(eqn) else 1


class While(NamedTuple):
    """A loop. Its operands are the constants of the condition, those of the body, then what is carried."""

    condition: Jaxpr
    body: Jaxpr
    num_of_condition: int
    """The number of constants of the condition."""
    num_of_body: int
    """The number of constants of the body."""


def while_of(eqn: Equation) -> While:
    names = "cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts"
    return While(*(eqn.params[name] for name in names))


def branches_of(eqn: Equation) -> Sequence[Jaxpr]:
    """Return the branches of a condition, whose operands follow the number of the branch."""
    return eqn.params["branches"]


class Mapped(NamedTuple):
    """A `shard_map`: the program of one device, and how the arrays outside are split for it."""

    body: Jaxpr
    axes: frozenset[str]
    """The mesh axes over which it splits by itself."""
    ways: int
    """The number of devices along these axes."""
    operands: Sequence[PartitionSpec]
    results: Sequence[PartitionSpec]


def mapped_of(eqn: Equation) -> Mapped:
    params, axes = eqn.params, frozenset(eqn.params["newly_manual_axes"])
    ways = math.prod(params["mesh"].shape[axis] for axis in axes)
    return Mapped(params["jaxpr"], axes, ways, params["in_specs"], params["out_specs"])


def settings_of(eqn: Equation) -> dict[str, Any]:
    """Return the arguments of a call of `jax.checkpoint`, but for its function."""
    return {name: eqn.params[name] for name in ("policy", "prevent_cse")}


def constraint_of(eqn: Equation) -> PartitionSpec:
    """Return the spec of a sharding constraint."""
    return eqn.params["sharding"].spec


def exponent_of(eqn: Equation) -> int | None:
    """Return the exponent of an `integer_pow`; None for all else."""
    return eqn.params["y"] if eqn.primitive.name == "integer_pow" else None


def exchanged_axes(eqn: Equation) -> tuple[str, ...]:
    """Return the mesh axes along which a collective sends; none for all else.

    Numbers among its axes stand for dimensions that `vmap` made.
    """
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes) if isinstance(axis, str))


def specs_in(eqn: Equation) -> Iterator[PartitionSpec]:
    """Yield the specs of an equation: of a constraint, a `shard_map`, or, of explicit axes, its results."""
    yield from _specs(tuple(eqn.params.values()))
    yield from _specs(tuple(getattr(var.aval, "sharding", None) for var in eqn.outvars))


def _specs(value: Any) -> Iterator[PartitionSpec]:
    if isinstance(value, NamedSharding):
        yield value.spec
    elif isinstance(value, PartitionSpec):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _specs(part)
