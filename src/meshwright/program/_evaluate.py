"""A jaxpr evaluated equation by equation, so that a caller can compute some equations in another way."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax

from meshwright.program import _jaxprs as jaxprs
from meshwright.program._jaxprs import Equation, Jaxpr

Results = Callable[[Equation, list[Any]], Sequence[Any]]
"""A function of an equation and its operands that returns its results."""


def evaluate(jaxpr: Jaxpr, arguments: Sequence[Any], results: Results) -> list[Any]:
    """Return the results of a jaxpr; each equation keeps its named scope.

    Example:
      >>> jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(0.0)
      >>> [print(f"{x:.0f}") for x in mw.program._internal.evaluate(jaxpr, [0.0], mw.program._internal.bind)]
      1
      [None]
    """
    inner, values = jaxprs.opened(jaxpr), jaxprs.constants(jaxpr)
    values |= zip(inner.invars, arguments, strict=True)

    def value(atom: Any) -> Any:
        return atom.val if jaxprs.is_literal(atom) else values[atom]

    for eqn in inner.eqns:
        scope = str(eqn.source_info.name_stack)
        with jax.named_scope(scope) if scope else nullcontext(), eqn.ctx.manager:
            computed = results(eqn, list(map(value, eqn.invars)))
        values |= zip(eqn.outvars, computed, strict=True)
    return list(map(value, inner.outvars))


def as_function(jaxpr: Jaxpr, out: Any, results: Results | None = None) -> Callable[..., Any]:
    """Return a jaxpr as a function of pytrees, given a pytree like its result."""
    structure = jax.tree.structure(out)

    def called(*arguments: Any, **named: Any) -> Any:
        leaves = evaluate(jaxpr, jax.tree.leaves((arguments, named)), results or bind)
        return jax.tree.unflatten(structure, leaves)

    return called


def bind(eqn: Equation, operands: Sequence[Any], changes: Mapping[str, Any] | None = None) -> Sequence[Any]:
    """Return the results of one equation on other operands."""
    params = eqn.primitive.get_bind_params({**eqn.params, **(changes or {})})
    results = eqn.primitive.bind(*operands, **params)
    return results if eqn.primitive.multiple_results else [results]


def bind_body(eqn: Equation, operands: Sequence[Any], body: Callable[..., Any]) -> Sequence[Any]:
    """Return the results of a call or a loop with another body, a function of the inputs of its own."""
    jaxpr = jaxprs.body_of(eqn)
    traced = jax.make_jaxpr(body)(*jaxprs.avals_of(jaxpr))
    return bind(eqn, operands, {"jaxpr": jaxprs.opened(traced) if jaxprs.opened(jaxpr) is jaxpr else traced})


def replacing(is_replaced: jaxprs.Test, results: Results) -> Results:
    """Return the function for `evaluate` that computes some equations by `results`, the others as they are.

    Calls that hold such an equation are inlined.
    """

    def computed(eqn: Equation, operands: list[Any]) -> Sequence[Any]:
        if is_replaced(eqn):
            return results(eqn, operands)
        if jaxprs.is_call(eqn) and jaxprs.holds(eqn, is_replaced):
            return evaluate(jaxprs.body_of(eqn), operands, computed)
        return bind(eqn, operands)

    return computed


without_checkpoints: Results = replacing(
    jaxprs.is_checkpoint, lambda eqn, operands: evaluate(jaxprs.body_of(eqn), operands, without_checkpoints)
)
"""Return the results of an equation; a `jax.checkpoint`, also inside calls, is left out."""
