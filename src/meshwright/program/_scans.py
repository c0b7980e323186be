"""The parts of a scan's operands and results."""

from typing import Any


def scan_counts(eqn: Any) -> tuple[int, int]:
    """Return how many operands of a scan are constants, and how many are carried.

    Shapes show what is carried and what is sliced: JAX's parameters for it change.
    """
    body = getattr(eqn.params["jaxpr"], "jaxpr", eqn.params["jaxpr"])
    num_carry = _num_whole(eqn.outvars, body.outvars)
    return _num_whole(eqn.invars, body.invars) - num_carry, num_carry


def _num_whole(outside: Any, inside: Any) -> int:
    return sum(x.aval.ndim == y.aval.ndim for x, y in zip(outside, inside, strict=True))
