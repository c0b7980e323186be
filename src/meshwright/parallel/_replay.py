"""A traced program, run again with sharding constraints at some of its equations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from meshwright.program._internal import CALLS, bind, evaluate, is_stack


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

_BODIES = ("scan", "checkpoint", "remat", "remat2")


def replayed(jaxpr: Any, places: Places) -> Callable[..., list[Any]]:
    """Return a closed jaxpr as a function of its inputs, with constraints at `places`.

    Calls that hold a place are inlined. A place inside anything but calls, scans and `jax.checkpoint` is left
    out.
    """
    return lambda *arguments: _Replay(places).run(jaxpr, arguments)


class _Replay:
    def __init__(self, places: Places) -> None:
        self._places = places
        self._around = {chain[:i] for chain in places for i in range(1, len(chain))}
        self._brought: dict[tuple[int, tuple[P, ...]], tuple[Any, Any]] = {}
        """Operands with and without their constraints, so that products with the same factor share them."""

    def run(self, jaxpr: Any, arguments: Sequence[Any], callers: tuple[int, ...] = ()) -> list[Any]:
        return evaluate(
            jaxpr, arguments, lambda eqn, operands: self._results(eqn, operands, (*callers, id(eqn)))
        )

    def _results(self, eqn: Any, operands: list[Any], chain: tuple[int, ...]) -> Sequence[Any]:
        if place := self._places.get(chain):
            operands[place.operand] = self._bring(operands[place.operand], place.before)
            return [_constrained(x, place.after) for x in bind(eqn, operands)]
        if chain in self._around and is_stack(eqn):
            return bind(eqn, operands, {"jaxpr": self._body(eqn.params["jaxpr"], chain)})
        if chain in self._around and eqn.primitive.name in CALLS:
            return self.run(eqn.params["jaxpr"], operands, chain)
        if chain in self._around and eqn.primitive.name in _BODIES:
            return bind(eqn, operands, {"jaxpr": self._body(eqn.params["jaxpr"], chain)})
        return bind(eqn, operands)

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
