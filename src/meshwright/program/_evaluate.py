"""A jaxpr evaluated equation by equation, so that a caller can compute some equations in another way."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax

CALLS = ("jit", "pjit")
"""Primitives that call the jaxpr in their parameter `jaxpr`, and do no more."""
STACK = "stack_of_layers"
"""The name of the call that `mw.nn.layers` makes on a mesh with the axis `pipeline`."""


def is_stack(eqn: Any) -> bool:
    """Return whether an equation is the call of `mw.nn.layers`, whose jaxpr contains the scan over layers."""
    return eqn.primitive.name in CALLS and eqn.params.get("name") == STACK


def evaluate(
    jaxpr: Any, arguments: Sequence[Any], results: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Return the results of a jaxpr; each equation keeps its named scope.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(0.0)
      >>> [print(f"{x:.0f}") for x in mw.program._internal.evaluate(jaxpr, [0.0], mw.program._internal.bind)]
      1
      [None]
    """
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    known = dict(zip(getattr(inner, "constvars", ()), getattr(jaxpr, "consts", ()), strict=False))
    known |= zip(inner.invars, arguments, strict=True)

    def value(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for eqn in inner.eqns:
        scope = str(eqn.source_info.name_stack)
        with jax.named_scope(scope) if scope else nullcontext(), eqn.ctx.manager:
            made = results(eqn, list(map(value, eqn.invars)))
        known |= zip(eqn.outvars, made, strict=True)
    return list(map(value, inner.outvars))


def bind(eqn: Any, operands: Sequence[Any], changes: Mapping[str, Any] | None = None) -> Sequence[Any]:
    """Return the results of one equation on other operands."""
    made = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params({**eqn.params, **(changes or {})}))
    return made if eqn.primitive.multiple_results else [made]
