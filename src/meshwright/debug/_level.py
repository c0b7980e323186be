"""One level of a program run equation by equation, which keeps what is not finite."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.program._internal import Algebra, Equation, bind, evaluate, jaxprs, parts_of, primitive_of

_MOST_NBYTES = 2**30
"""The largest number of bytes of values on a way that are copied to the host."""
_FAR = 60
"""The largest number of equations that are searched for the name of a parameter."""


class Candidate(NamedTuple):
    """An operand of an equation that is not finite at one of the elements that a result is made from."""

    atom: Any
    """The operand, a variable or a literal of the jaxpr."""
    index: tuple[int, ...]
    """Index of the element."""
    value: Any
    """Value of the element."""


class Level:
    """The equations of a jaxpr, without those of the jaxprs inside it, run on arguments.

    A compiled program says which values are not finite. Only those on the way from a result backwards are
    then copied to the host, as after a NaN nearly all others are not finite, too.
    """

    def __init__(self, jaxpr: Any, arguments: Sequence[Any], names: Mapping[int, str]):
        self.jaxpr, self._closed, self._arguments = jaxprs.opened(jaxpr), jaxpr, arguments
        inner = self.jaxpr
        self._values = {**jaxprs.constants(jaxpr), **dict(zip(inner.invars, arguments, strict=True))}
        self.inputs = {var: number for number, var in enumerate(inner.invars)}
        self.makers = {var: number for number, eqn in enumerate(inner.eqns) for var in eqn.outvars}
        self.names = {inner.invars[number]: name for number, name in names.items()}
        for eqn in inner.eqns:
            self._name(eqn)
        self._kinds = self._bad_kinds()
        self._arrays: dict[Any, np.ndarray] = {}

    def is_bad(self, atom: Any) -> bool:
        """Return whether a value of the level is not finite."""
        return not is_finite(atom.val) if jaxprs.is_literal(atom) else atom in self._kinds

    def first_nan(self) -> Any:
        """Return the variable of the first NaN that an equation makes; None if there is none."""
        numbers = [number for var, number in self.makers.items() if self._kinds.get(var) == _NAN]
        first = min(numbers, default=None)
        variables = () if first is None else self.jaxpr.eqns[first].outvars
        return next((var for var in variables if self._kinds.get(var) == _NAN), None)

    def look_at(self, atom: Any) -> Any:
        """Copy the values on the way from a result backwards to the host, and return where the way begins.

        That is the result or, if these values take too much memory, an earlier value on the way.
        """
        way = self._way_to(atom)
        if sum(_nbytes(var) for var in way) > _MOST_NBYTES:
            nans = [var for var in way if self._kinds[var] == _NAN] or way
            atom = min(nans, key=lambda var: self.makers.get(var, -1))
            way = self._way_to(atom)
        self._arrays = dict(zip(way, map(on_host, self._computed(way)), strict=True))
        return atom

    def array(self, atom: Any) -> np.ndarray | None:
        """Return a value on the way that is not finite, and None for a finite one."""
        if not jaxprs.is_literal(atom):
            return self._arrays.get(atom)
        return None if is_finite(atom.val) else on_host(atom.val)

    def operands(self, number: int) -> list[Any]:
        """Return the operands of an equation, for which those before it run again."""
        atoms = self.jaxpr.eqns[number].invars
        names = jaxprs.variables(atoms)
        values = dict(zip(names, self._computed(names), strict=True))
        return [atom.val if jaxprs.is_literal(atom) else values[atom] for atom in atoms]

    def candidates(self, eqn: Equation, out: int, index: tuple[int, ...]) -> list[Candidate]:
        """Return the elements that are not finite among those that an element of a result is made from."""
        candidates = []
        for atom, part in zip(eqn.invars, parts_of(eqn, out, index), strict=True):
            if (x := self.array(atom)) is not None and (position := first_bad(x[part])) is not None:
                inner = np.arange(x.size).reshape(x.shape)[part][position]
                element = tuple(int(i) for i in np.unravel_index(int(inner), x.shape))
                candidates.append(Candidate(atom, element, x[element]))
        return candidates

    def near(self, eqn: Equation) -> list[str]:
        """Return the names of the inputs that an equation reads or, if none, of those read closest before."""
        queue, num_searched = [eqn], 0
        while queue and num_searched < _FAR:
            current, num_searched = queue.pop(0), num_searched + 1
            operands = jaxprs.variables(current.invars)
            if names := [self.names[var] for var in operands if var in self.names]:
                return list(dict.fromkeys(names))
            queue += [self.jaxpr.eqns[self.makers[var]] for var in operands if var in self.makers]
        return []

    def _way_to(self, atom: Any) -> list[Any]:
        """Return the values that are not finite on all ways from a value backwards, with the value."""
        way, queue = dict.fromkeys([atom]), [atom]
        while queue:
            number = self.makers.get(queue.pop())
            for var in () if number is None else jaxprs.variables(self.jaxpr.eqns[number].invars):
                if var in self._kinds and var not in way:
                    way[var] = None
                    queue.append(var)
        return list(way)

    def _bad_kinds(self) -> dict[Any, int]:
        """Return the values that are not finite, each with its kind."""
        names = [var for var in (*self._values, *self.makers) if _is_inexact(var)]
        kinds = jax.device_get(self._run(names, lambda x: _kind(x)))
        return {var: int(kind) for var, kind in zip(names, kinds, strict=True) if kind != _FINITE}

    def _computed(self, names: Sequence[Any]) -> list[Any]:
        return self._run(names, lambda x: x) if names else []

    def _run(self, names: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        """Return a function of some values. XLA leaves out the equations that they do not need."""

        def run(values: Sequence[Any]) -> list[Any]:
            environment = dict(zip(self._values, values, strict=True))

            def results(eqn: Equation, operands: list[Any]) -> Sequence[Any]:
                results = bind(eqn, operands)
                environment.update(zip(eqn.outvars, results, strict=True))
                return results

            arguments = [environment[var] for var in self.jaxpr.invars]
            evaluate(self._closed, arguments, results)
            return [function(environment[var]) for var in names]

        # With excess precision an overflow in float16 would not be one.
        options = {"xla_allow_excess_precision": False}
        return jax.jit(run, compiler_options=options)(list(self._values.values()))

    def _name(self, eqn: Equation) -> None:
        primitive = primitive_of(eqn.primitive.name)
        if primitive.is_same or primitive.algebra is Algebra.MOVED:
            for var in jaxprs.variables(eqn.invars[:1]):
                self.names |= dict.fromkeys(eqn.outvars, self.names[var]) if var in self.names else {}


_FINITE, _INFINITE, _NAN = 0, 1, 2


def _kind(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isnan(x).any(), _NAN, jnp.where(jnp.isfinite(x).all(), _FINITE, _INFINITE))


def _is_inexact(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def _nbytes(var: Any) -> int:
    return int(np.prod(var.aval.shape, dtype=np.int64)) * var.aval.dtype.itemsize


def is_finite(x: Any) -> bool:
    """Return whether all elements of a value are finite; integers and keys are."""
    if not jnp.issubdtype(getattr(x, "dtype", np.result_type(type(x))), jnp.inexact):
        return True
    return bool(_all_finite(x))


@jax.jit
def _all_finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def on_host(x: Any) -> np.ndarray:
    """Return a value as a NumPy array of a dtype that NumPy's functions know."""
    x = np.asarray(x)
    return x if x.dtype.kind in "fc" else x.astype(np.float32)


def first_bad(x: np.ndarray) -> tuple[int, ...] | None:
    """Return the first element that is not a number or, if there is none, the first infinite one."""
    for wrong in (np.isnan(x), ~np.isfinite(x)):
        if wrong.any():
            return tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), x.shape))
    return None
