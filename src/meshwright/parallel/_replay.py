"""A traced program, run again with sharding constraints at some of its equations."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import PartitionSpec as P

from meshwright.program._internal import bind, bind_body, evaluate, jaxprs


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


class Replay:
    """The constraints, as a function of an equation and its operands for `evaluate`.

    Calls that hold a place are inlined. A place inside anything but calls, scans and `jax.checkpoint` is left
    out.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._around = {chain[:i] for chain in places for i in range(1, len(chain))}
        self._brought: dict[tuple[int, tuple[P, ...]], tuple[Any, Any]] = {}
        """Operands with and without their constraints, so that products with the same factor share them."""

    def __call__(self, eqn: Any, operands: list[Any], callers: tuple[int, ...] = ()) -> Sequence[Any]:
        chain = (*callers, id(eqn))
        if place := self._places.get(chain):
            operands[place.operand] = self._bring(operands[place.operand], place.before)
            return [_constrained(x, place.after) for x in bind(eqn, operands)]
        has_body = jaxprs.is_call(eqn) or jaxprs.is_scan(eqn) or jaxprs.is_checkpoint(eqn)
        if chain not in self._around or not has_body:
            return bind(eqn, operands)
        body = partial(evaluate, jaxprs.body_of(eqn), results=partial(self, callers=chain))
        if jaxprs.is_call(eqn) and not jaxprs.is_stack(eqn):
            return body(operands)
        return bind_body(eqn, operands, lambda *inputs: body(inputs))

    def _bring(self, x: Any, specs: tuple[P, ...]) -> Any:
        if (id(x), specs) not in self._brought:
            self._brought[id(x), specs] = _constrained(x, specs), x  # while it lives, no other has its id
        return self._brought[id(x), specs][0]


def _constrained(x: Any, specs: tuple[P, ...]) -> Any:
    for spec in specs:
        x = jax.lax.with_sharding_constraint(x, spec)
    return x
