"""Calls of an optimizer, with errors for what it refuses, and support for `optax.MultiSteps`."""

import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import optax

from meshwright.base._internal import PyTree, tree
from meshwright.errors import UsageError, listed
from meshwright.training._guard import SkipState

_LACKS = "required keyword-only argument"
"""The words of Python's error if an argument that the optimizer needs is missing."""


def init_optimizer(optimizer: Any, params: PyTree) -> optax.OptState:
    """Return `optimizer.init(params)`."""
    try:
        return optimizer.init(params)
    except (ValueError, TypeError) as error:
        kind, expected = _kind_of_masks(error), type(params).__name__
        if kind in (None, expected):
            raise
        raise UsageError(
            f"the optimizer's mask or labels are a {kind}, but the parameters are a {expected} of arrays by "
            f"name: {listed(tree.leaf_names(params))}.\n"
            "  Give a function of the parameters: lambda params: jax.tree.map(lambda x: x.ndim > 1, params). "
            "Or patterns of names, by mw.training.by_path, decay_by_path or Trainer(trainable='lora/.*'). "
            "flax.core.unfreeze(labels) makes a plain dict of a FrozenDict."
        ) from error


def _kind_of_masks(error: Exception) -> str | None:
    """Return the type of the masks or labels that optax worked on when it failed, if they are a tree."""
    # A module is a tree, although it can be called: optax then calls the module, and fails with any error.
    # The optimizer is a closure, so only the frames of the traceback show its masks.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for masks in (frame.f_locals.get(name) for name in ("mask", "param_labels")):
            if masks is not None and all(isinstance(x, bool | str) for x in jax.tree.leaves(masks)):
                return type(masks).__name__
    return None


def updated(
    optimizer: Any, grads: PyTree, opt_state: optax.OptState, params: PyTree, loss: Any
) -> tuple[PyTree, optax.OptState]:
    """Return the result of `optimizer.update`, with `loss`, a `Mean`, and the gradients if it needs them."""
    update = partial(optimizer.update, grads, opt_state, params)
    try:
        try:
            return update()
        except TypeError as error:
            if _LACKS not in str(error):
                raise
            # Only now: some transformations refuse arguments that they do not need.
            return update(value=loss.value, grad=grads)
    except (TypeError, ValueError, AttributeError) as error:
        if not re.search(f"value_fn|obj_fn|grad_fn|{_LACKS}|has no attribute 'fast'", str(error)):
            raise
        raise UsageError(
            "the optimizer asks for more than the gradients, the parameters and the loss, as optax.lbfgs, "
            f"lookahead, contrib.sophia and an opaque contrib.sam do: {error}\n"
            "  Make the update yourself: mw.Trainer(train_step=...) or mw.training.Step."
        ) from error


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
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, optax.MultiStepsState))
    return [node for node in nodes if isinstance(node, optax.MultiStepsState)]


@contextmanager
def kept_complex() -> Iterator[None]:
    """Raise a `UsageError` if an optimizer that is traced in the block casts complex numbers to real ones.

    JAX only gives a warning, which Python often does not show, and drops the imaginary parts.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Casting from complex to real", DeprecationWarning)
            yield
    except DeprecationWarning:
        raise UsageError(
            "the optimizer casts complex numbers to real ones, and would drop the imaginary parts.\n  Use "
            "another optimizer, or leave out its dtype (for example `mu_dtype`). `microbatches` accumulates "
            "complex gradients correctly."
        ) from None
