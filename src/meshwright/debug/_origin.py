"""The operation that made a value of a program that is not finite, found from the result backwards.

A level of the program (a function, the body of a loop) runs equation by equation. From a result that is not
finite the way leads back along operands that are not finite, element by element as far as shapes tell, to the
equation whose operands are finite. An infinity that is on no such way, such as that of a mask, is harmless,
and is not blamed. If the way ends in a call or in a loop, it goes on inside, in the iteration where it began.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from meshwright.debug._level import Candidate, Level, first_bad, is_finite, on_host
from meshwright.program._internal import Equation, bind, evaluate, jaxprs, parts_of


@dataclass(frozen=True)
class Around:
    """A call or a loop that an equation is in."""

    eqn: Equation
    """The equation of the call or the loop."""
    turn: int | None = None
    """The number of the slice that a scan works on, or of the iteration of another loop; None for a call."""


@dataclass(frozen=True)
class Input:
    """A value that is not finite and that no operation made: it is in an input, or a constant."""

    number: int | None
    """The number of the input; None for a constant."""
    index: tuple[int, ...]
    """Index of the element."""
    value: float
    """Value of the element."""
    name: str = ""
    """The name of the input, if it has one."""


@dataclass(frozen=True)
class Origin:
    """An operation that made a value that is not finite of finite ones, or NaN of infinite ones."""

    eqn: Equation
    """The equation."""
    operands: Sequence[Any]
    """Its operands."""
    index: tuple[int, ...]
    """Index of the element of the result that is not finite."""
    value: float
    """The value of this element."""
    results: Sequence[Any]
    """Its results."""
    out: int = 0
    """The number of this result."""
    around: tuple[Around, ...] = ()
    """The calls and loops that it is in, the outermost first."""
    near: Sequence[str] = ()
    """The names of the program's inputs that it reads or, if it reads none, of those read closest before."""
    because: "Origin | Input | None" = None
    """The source of an infinite operand, of which it made NaN; None if its operands are finite."""

    @property
    def elements(self) -> list[np.ndarray]:
        """The elements of each operand that the element is made from, as far as shapes tell."""
        parts = parts_of(self.eqn, self.out, self.index)
        return [np.asarray(x)[part] for x, part in zip(self.operands, parts, strict=True) if _is_array(x)]


Source = Origin | Input


def origin(
    jaxpr: Any,
    arguments: Sequence[Any],
    results: Sequence[tuple[int, tuple[int, ...] | None]],
    names: Mapping[int, str] = {},
) -> Source | None:
    """Return the source of the first result that is not finite; None if all are finite.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x: jnp.log(x - 1) * 2)(0.0)
      >>> found = mw.debug._internal.origin(jaxpr, [jnp.float32(0)], [(0, None)])
      >>> print(found.eqn.primitive.name, found.value)
      log nan
    """
    level = Level(jaxpr, arguments, names)
    for number, element in results:
        atom = level.jaxpr.outvars[number]
        if level.is_bad(atom) and (source := _from(level, atom, element, ())) is not None:
            return source
    return None


def first_made(jaxpr: Any, arguments: Sequence[Any], names: Mapping[int, str] = {}) -> Source | None:
    """Return the source of the first NaN that any operation makes, used or not; None if there is none."""
    level = Level(jaxpr, arguments, names)
    first = level.first_nan()
    return None if first is None else _from(level, first, None, ())


def _from(
    level: Level, atom: Any, element: tuple[int, ...] | None, around: tuple[Around, ...]
) -> Source | None:
    """Return the source of a value of a level that is not finite; None if the given element of it is."""
    begin = level.look_at(atom)
    x = level.array(begin)
    assert x is not None
    if begin is atom and element is not None:
        return _trace(level, atom, element, around) if not np.isfinite(x[element]) else None
    index = first_bad(x)
    return None if index is None else _trace(level, begin, index, around)


def _is_array(x: Any) -> bool:
    """Return whether a value is an array that NumPy can hold: a PRNG key is none."""
    return not (hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended))


def _trace(level: Level, atom: Any, index: tuple[int, ...], around: tuple[Around, ...]) -> Source:
    """Return the source of an element of a value of a level, from there backwards."""
    while True:
        x = level.array(atom)
        assert x is not None
        value = x[index]
        if jaxprs.is_literal(atom) or atom not in level.makers:
            number = None if jaxprs.is_literal(atom) else level.inputs.get(atom)
            return Input(number, index, value, "" if number is None else level.names.get(atom, ""))
        number = level.makers[atom]
        eqn = level.jaxpr.eqns[number]
        out = eqn.outvars.index(atom)
        if any(test(eqn) for test, _ in _WITH_BODIES):
            source = _inside(level, number, out, index, around)
            if not isinstance(source, Input):
                return source
            if source.number is None:
                return source
            atom, index = eqn.invars[source.number], source.index
            continue
        chosen = _chosen(level.candidates(eqn, out, index), value)
        if chosen is None or (np.isnan(value) and not np.isnan(chosen.value)):
            return _made_here(level, number, out, index, around, chosen)
        atom, index = chosen.atom, chosen.index


def _chosen(candidates: Sequence[Candidate], value: Any) -> Candidate | None:
    """Return the candidate that a value most likely comes from: an equal one, rather than a constant."""

    def rank(candidate: Candidate) -> tuple[bool, bool]:
        is_same = bool(np.isnan(candidate.value)) if np.isnan(value) else candidate.value == value
        return not is_same, jaxprs.is_literal(candidate.atom)

    return min(candidates, key=rank, default=None)


def _made_here(
    level: Level, number: int, out: int, index: tuple[int, ...], around: tuple[Around, ...],
    infinite: Candidate | None,
) -> Origin:  # fmt: skip
    eqn, operands = level.jaxpr.eqns[number], level.operands(number)
    x = level.array(eqn.outvars[out])
    assert x is not None
    because = None if infinite is None else _trace(level, infinite.atom, infinite.index, around)
    results = jax.jit(lambda *values: bind(eqn, values))(*operands)
    return Origin(eqn, operands, index, x[index], results, out, around, level.near(eqn), because)


def _inside(
    level: Level, number: int, out: int, index: tuple[int, ...], around: tuple[Around, ...]
) -> Source:
    """Return the source inside a call or a loop; an `Input` has the number of an operand of the equation."""
    eqn, operands = level.jaxpr.eqns[number], level.operands(number)
    variables = [(i, x) for i, x in enumerate(eqn.invars) if not jaxprs.is_literal(x)]
    names = {i: level.names[x] for i, x in variables if x in level.names}
    of_body = next(of_body for test, of_body in _WITH_BODIES if test(eqn))
    source = of_body(_Entry(eqn, operands, out, index, around, names))
    # Run equation by equation, the body may be finite where its fused program is not.
    if source is None:
        return _made_here(level, number, out, index, around, None)
    if isinstance(source, Origin) and not source.near:
        return replace(source, near=level.near(eqn))
    return source


@dataclass(frozen=True)
class _Entry:
    """An equation with jaxprs inside, and the element of its result whose source is there."""

    eqn: Equation
    operands: Sequence[Any]
    out: int
    index: tuple[int, ...]
    around: tuple[Around, ...]
    names: Mapping[int, str]

    def source(self, jaxpr: Any, numbers: Sequence[int]) -> Source | None:
        """Return the source in a jaxpr that gets the operands of these numbers."""
        names = {i: self.names[number] for i, number in enumerate(numbers) if number in self.names}
        operands, around = [self.operands[number] for number in numbers], (*self.around, Around(self.eqn))
        return _renumbered(_of_body(jaxpr, operands, self.out, self.index, around, names), numbers)


def _of_body(
    jaxpr: Any,
    operands: Sequence[Any],
    out: int,
    index: tuple[int, ...] | None,
    around: tuple[Around, ...],
    names: Mapping[int, str],
) -> Source | None:
    level = Level(jaxpr, operands, names)
    atom = level.jaxpr.outvars[out]
    if not level.is_bad(atom):
        return None
    return _from(level, atom, index, around) or _from(level, atom, None, around)


def _renumbered(source: Source | None, numbers: Sequence[int]) -> Source | None:
    """Return a source in an input with the number that the input has among the operands of the equation."""
    is_input = isinstance(source, Input) and source.number is not None
    return replace(source, number=numbers[source.number]) if is_input else source  # type: ignore[union-attr,index]


def _of_call(entry: _Entry) -> Source | None:
    call = jaxprs.called(entry.eqn)
    assert call is not None
    return entry.source(call.jaxpr, call.operands)


def _of_branch(entry: _Entry) -> Source | None:
    branches = jaxprs.branches_of(entry.eqn)
    branch = branches[int(np.clip(int(entry.operands[0]), 0, len(branches) - 1))]
    return entry.source(branch, range(1, len(entry.operands)))


def _of_scan(entry: _Entry) -> Source | None:
    scan, operands, index = jaxprs.scan_of(entry.eqn), entry.operands, entry.index
    turns, slices = list(scan.turns), operands[scan.num_whole :]
    if entry.out >= scan.num_carry:
        turns, index = turns[: turns.index(index[0]) + 1], index[1:]
    consts, start = operands[: scan.num_consts], operands[scan.num_consts : scan.num_whole]
    loop = _Loop(entry, scan.body, consts, start, turns, lambda turn: [x[turn] for x in slices])
    return loop.source(entry.out, index)


def _of_while(entry: _Entry) -> Source | None:
    loop = jaxprs.while_of(entry.eqn)
    skipped = loop.num_of_condition
    of_condition, operands = entry.operands[:skipped], entry.operands[skipped:]
    condition = jax.jit(lambda *values: evaluate(loop.condition, values, bind)[0])
    consts, start = operands[: loop.num_of_body], operands[loop.num_of_body :]
    run = jax.jit(lambda *values: evaluate(loop.body, values, bind))
    carry, turns = list(start), 0
    while bool(condition(*of_condition, *carry)):
        carry, turns = run(*consts, *carry), turns + 1
        if not is_finite(carry[entry.out]):
            break
    inner = replace(entry, names={number - skipped: name for number, name in entry.names.items()})
    turned = _Loop(inner, loop.body, consts, start, list(range(turns)), lambda turn: [])
    return _renumbered(turned.source(entry.out, None), range(skipped, len(entry.operands)))


_WITH_BODIES: tuple[tuple[Callable[[Equation], Any], Callable[[_Entry], Source | None]], ...] = (
    (jaxprs.is_scan, _of_scan),
    (jaxprs.is_while, _of_while),
    (jaxprs.is_condition, _of_branch),
    (jaxprs.called, _of_call),
)
"""Tests for equations with bodies, each with the function that searches inside."""


class _Loop:
    """A loop that runs iteration by iteration, and keeps what was carried into each."""

    def __init__(
        self,
        entry: _Entry,
        body: Any,
        consts: Sequence[Any],
        start: Sequence[Any],
        turns: Sequence[int],
        slices: Callable[[int], Sequence[Any]],
    ):
        self._entry, self._body, self._consts, self._turns = entry, body, list(consts), turns
        self._slices, run = slices, jax.jit(lambda *values: evaluate(body, values, bind))
        self._carries = [list(start)]
        for turn in turns[:-1]:
            self._carries.append(run(*consts, *self._carries[-1], *slices(turn))[: len(start)])

    def source(self, out: int, index: tuple[int, ...] | None) -> Source | None:
        """Return the source of a result: a carried value after the last iteration, or a slice of it."""
        position, num_consts = len(self._turns) - 1, len(self._consts)
        while position >= 0:
            if out < len(self._carries[0]):
                position, index = self._begin(position, out, index)
            turn = self._turns[position]
            source = _of_body(
                self._body,
                [*self._consts, *self._carries[position], *self._slices(turn)],
                out,
                index,
                (*self._entry.around, Around(self._entry.eqn, turn)),
                self._entry.names,
            )
            if not isinstance(source, Input) or source.number is None or source.number < num_consts:
                return source
            carry = source.number - num_consts
            if carry >= len(self._carries[0]):
                return replace(source, index=(turn, *source.index))
            if position == 0:
                return source
            position, out, index = position - 1, carry, source.index
        return None

    def _begin(
        self, position: int, out: int, index: tuple[int, ...] | None
    ) -> tuple[int, tuple[int, ...] | None]:
        """Return the iteration in which a carried value, not finite at the end, was first not finite."""
        last = position
        while position > 0 and not is_finite(self._carries[position][out]):
            position -= 1
        if position == last:
            return position, index
        return position, first_bad(on_host(self._carries[position + 1][out]))
