"""An objective cut at its one stack of layers: what comes before, the scan over layers, and what comes after.

    weights, piece, key ──before──> operands ──scan──> results ──after──> total, metrics
                  └───────────────────────────────────────────────^

What both sides need is computed on both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.errors import UsageError
from meshwright.parallel._internal import MICROBATCH
from meshwright.program._internal import bind, evaluate, jaxprs, replacing


class Cut:
    """The parts of an objective with one stack of layers."""

    def __init__(self, traced: Any, num_weights: int, places: int) -> None:
        self._flat = flat = _inlined(traced, places)
        stacks = [eqn for eqn in flat.jaxpr.eqns if jaxprs.is_stack(eqn)]
        if len(stacks) != 1:
            raise UsageError(
                "pipeline_schedule='1f1b' needs a loss with one stack of layers; this one calls "
                f"mw.nn.layers {len(stacks)} times.\n  Use pipeline_schedule='gpipe', "
                "which takes any number of stacks."
            )
        self._stack = stacks[0]
        self.scan = jaxprs.opened(jaxprs.body_of(self._stack)).eqns[0]
        """The equation of the scan over layers."""
        scan = jaxprs.scan_of(self.scan)
        weights, others = flat.jaxpr.invars[:num_weights], flat.jaxpr.invars[num_weights:]
        trained, own = jaxprs.reached(flat, filter(is_inexact, weights)), jaxprs.reached(flat, others)
        operands = self._stack.invars
        is_carry = [scan.num_consts <= i < scan.num_whole for i in range(len(operands))]
        is_own = [var in own or carry for var, carry in zip(map(_key, operands), is_carry, strict=True)]
        self.own = [i for i, differs in enumerate(is_own) if differs]
        """The operands of the scan that differ between microbatches, and those that it carries."""
        self.shared = [i for i, differs in enumerate(is_own) if not differs]
        """All other operands."""
        self.trained = {i for i, var in enumerate(operands) if _key(var) in trained and is_inexact(var)}
        """The operands of the scan that depend on weights."""

        self._before = {
            True: jaxprs.needed(flat, [operands[i] for i in self.own]),
            False: jaxprs.needed(flat, [operands[i] for i in self.shared]),
        }
        self._after = jaxprs.needed(flat, flat.jaxpr.outvars, without=self._stack)
        outside = self._before[True] | self._after
        self.weights_outside = [i for i, var in enumerate(weights) if var in outside and is_inexact(var)]
        """The numbers of the weights that a microbatch needs before the stack or after it."""

    def shared_operands(self, weights: Sequence[Any]) -> list[Any]:
        """Return the operands of the scan that all microbatches share."""
        others = len(self._flat.jaxpr.invars) - len(weights)
        return self._operands(False, [*weights, *[None] * others])

    def own_operands(self, weights: Sequence[Any], piece: Sequence[Any]) -> list[Any]:
        """Return the operands of the scan that are one microbatch's own."""
        return self._operands(True, [*weights, *piece])

    def _operands(self, is_own: bool, inputs: Sequence[Any]) -> list[Any]:
        values: list[Any] = []

        def at_stack(operands: list[Any]) -> list[Any]:
            values.extend(operands[i] for i in (self.own if is_own else self.shared))
            return [None] * len(self._stack.outvars)

        self._evaluated(inputs, self._before[is_own], at_stack)
        return values

    def outputs(self, weights: Sequence[Any], piece: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        """Return the outputs of the objective of one microbatch, given the results of the scan."""
        return self._evaluated([*weights, *piece], self._after, lambda _: list(results))

    def _evaluated(
        self, inputs: Sequence[Any], used: set[Any], at_stack: Callable[[list[Any]], list[Any]]
    ) -> list[Any]:
        def results(eqn: Any, operands: list[Any]) -> Sequence[Any]:
            if eqn is self._stack:
                return at_stack(operands)
            return bind(eqn, operands) if used.intersection(eqn.outvars) else [None] * len(eqn.outvars)

        return evaluate(self._flat, inputs, results)


def _inlined(traced: Any, places: int) -> Any:
    """Return the jaxpr without the calls around its stacks, and with each scan over layers as one call."""

    def in_stack(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        def scan(*operands: Any) -> list[Any]:
            return list(bind(eqn, operands))

        scan.__name__ = jaxprs.STACK
        return jax.jit(scan)(*operands) if jaxprs.is_scan(eqn) else bind(eqn, operands)

    def results(eqn: Any, operands: list[Any]) -> Sequence[Any]:
        return evaluate(jaxprs.body_of(eqn), operands, in_stack if jaxprs.is_stack(eqn) else inlined)

    inlined = replacing(holds_stack, results)

    def evaluated(*inputs: Any) -> list[Any]:
        return evaluate(traced, inputs, inlined)

    inputs = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in traced.jaxpr.invars]
    return jax.make_jaxpr(evaluated, axis_env=[(MICROBATCH, places)])(*inputs)


def holds_stack(eqn: Any) -> bool:
    """Return whether an equation is a stack of layers, or a `jax.checkpoint` of one."""
    return jaxprs.is_stack(eqn) or (jaxprs.is_checkpoint(eqn) and jaxprs.holds(eqn, jaxprs.is_stack))


def _key(var: Any) -> Any:
    """Return a variable; None in place of a literal, which cannot be looked up."""
    return None if jaxprs.is_literal(var) else var


def is_inexact(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)
