"""A traced program, run again with sharding constraints at some of its equations."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P


class Place(NamedTuple):
    """Constraints on an operand and on the result of one equation."""

    operand: int
    """Number of the operand."""
    before: tuple[P, ...]
    """Constraints on the operand, one after the other."""
    after: tuple[P, ...]
    """Constraints on the result."""


Places = Mapping[tuple[int, ...], Place]
"""Places by the identities of an equation and of the equations around it, the outermost first."""

_CALLS = ("jit", "pjit")
_BODIES = ("scan", "checkpoint", "remat", "remat2")


def replayed(jaxpr: Any, places: Places) -> Callable[..., list[Any]]:
    """Return a closed jaxpr as a function of its inputs, with constraints at `places`.

    Calls that hold a place are inlined. A place inside anything but calls, scans and `jax.checkpoint` is left
    out.

    Args:
      jaxpr: A closed jaxpr.
      places: The places of constraints.
    """
    return lambda *arguments: _Replay(places).run(jaxpr, arguments)


class _Replay:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._around = {chain[:i] for chain in places for i in range(1, len(chain))}
        self._brought: dict[tuple[int, tuple[P, ...]], tuple[Any, Any]] = {}
        """Operands with and without their constraints, so that products with the same factor share them."""

    def run(self, jaxpr: Any, arguments: Sequence[Any], callers: tuple[int, ...] = ()) -> list[Any]:
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        known = dict(zip(getattr(inner, "constvars", ()), getattr(jaxpr, "consts", ()), strict=False))
        known |= zip(inner.invars, arguments, strict=True)

        def value(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else known[atom]

        for eqn in inner.eqns:
            scope = str(eqn.source_info.name_stack)
            with jax.named_scope(scope) if scope else nullcontext(), eqn.ctx.manager:
                results = self._results(eqn, list(map(value, eqn.invars)), (*callers, id(eqn)))
            known |= zip(eqn.outvars, results, strict=True)
        return list(map(value, inner.outvars))

    def _results(self, eqn: Any, operands: list[Any], chain: tuple[int, ...]) -> Sequence[Any]:
        if place := self._places.get(chain):
            operands[place.operand] = self._bring(operands[place.operand], place.before)
            return [_constrained(x, place.after) for x in _bound(eqn, eqn.params, operands)]
        if chain in self._around and eqn.primitive.name in _CALLS:
            return self.run(eqn.params["jaxpr"], operands, chain)
        if chain in self._around and eqn.primitive.name in _BODIES:
            return _bound(eqn, {**eqn.params, "jaxpr": self._body(eqn.params["jaxpr"], chain)}, operands)
        return _bound(eqn, eqn.params, operands)

    def _body(self, jaxpr: Any, chain: tuple[int, ...]) -> Any:
        """Return the body of a scan or a checkpoint with its constraints, closed or not as it was."""
        avals = [var.aval for var in getattr(jaxpr, "jaxpr", jaxpr).invars]
        made = jax.make_jaxpr(lambda *arguments: self.run(jaxpr, arguments, chain))(*avals)
        return made if hasattr(jaxpr, "jaxpr") else getattr(made, "jaxpr", made)

    def _bring(self, x: Any, specs: tuple[P, ...]) -> Any:
        if (id(x), specs) not in self._brought:
            self._brought[id(x), specs] = _constrained(x, specs), x  # while it lives, no other has its id
        return self._brought[id(x), specs][0]


def _constrained(x: Any, specs: tuple[P, ...]) -> Any:
    for spec in specs:
        x = jax.lax.with_sharding_constraint(x, spec)
    return x


def _bound(eqn: Any, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
    made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(params))
    return made if eqn.primitive.multiple_results else [made]
