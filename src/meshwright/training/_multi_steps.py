"""Support for `optax.MultiSteps`, an optimizer that accumulates gradients over several steps."""

from typing import Any

import jax
import optax

from meshwright.errors import UsageError
from meshwright.training._guard import SkipState


def has_multi_steps(opt_state: optax.OptState) -> bool:
    """Return whether an optimizer with this state, abstract or not, contains an `optax.MultiSteps`."""
    return bool(_multi_steps(opt_state))


def num_updates(state: Any) -> int:
    """Return the number of updates that the optimizer has made.

    It is the number of steps, or the number of updates of an `optax.MultiSteps`. Updates that
    `skip_exploding` skipped do not count, if it guards all parameters.
    """
    if accumulators := _multi_steps(state.opt_state):
        return int(accumulators[0].gradient_step)
    guard = state.opt_state
    return int(state.step - guard.skipped if isinstance(guard, SkipState) else state.step)


def check_accumulated_once(opt_state: optax.OptState, microbatches: int) -> None:
    """Raise a `UsageError` if both the step and the optimizer accumulate gradients."""
    if microbatches > 1 and has_multi_steps(opt_state):
        raise UsageError(
            f"microbatches={microbatches} accumulates gradients, and optax.MultiSteps accumulates them "
            "again.\n"
            "  Give the optimizer itself, and leave out optax.MultiSteps."
        )


def _multi_steps(opt_state: optax.OptState) -> list[Any]:
    def is_one(node: Any) -> bool:
        return isinstance(node, optax.MultiStepsState)

    return [node for node in jax.tree.leaves(opt_state, is_leaf=is_one) if is_one(node)]
