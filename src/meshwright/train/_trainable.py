"""Which of the parameters an optimizer moves."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import jax
import optax

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.tree import PyTree

Trainable = str | Callable[[str, jax.ShapeDtypeStruct], bool]
"""A pattern as `sharding.match` reads it, or `(name, array) -> bool`; names are `params/layers/0/q`."""


@dataclass(frozen=True)
class Only:
    """An optimizer of some parameters: `Only("lora_[ab]", optax.adamw(1e-4))`. The others are frozen.

    It goes wherever an optax transformation does: to `init_state`, `state_from`, `abstract_state` and
    `make_step`, and is the outermost. Frozen parameters are of any dtype, are not differentiated, and stay
    as they are to the bit. The optimizer knows nothing of them: what it is given, and its state, is the tree
    of parameters with None in their places.

    Raises:
      UsageError: the pattern is not a regular expression.
    """

    trainable: Trainable
    tx: optax.GradientTransformation

    def __post_init__(self) -> None:
        _predicate(self.trainable)

    def split(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Return `params` (arrays, structs or tracers) twice, with None where frozen, and where trained.

        Raises:
          UsageError: nothing is left to train, or something to train is not of a floating or complex type.
        """
        trains = _predicate(self.trainable)
        chosen = tree.map_named(
            lambda name, x: trains(f"params/{name}", jax.ShapeDtypeStruct(x.shape, x.dtype)), params
        )
        _check_chosen(self.trainable, params, chosen)
        trained = jax.tree.map(lambda x, train: x if train else None, params, chosen)
        frozen = jax.tree.map(lambda x, train: None if train else x, params, chosen)
        return trained, frozen


Tx = optax.GradientTransformation | Only
"""What minimises: any optax transformation, for all parameters or for some."""


def as_only(tx: Tx) -> Only:
    """Return `tx` as an `Only`: an optax transformation trains everything."""
    return tx if isinstance(tx, Only) else Only(_everything, tx)


def joined(trained: PyTree, frozen: PyTree) -> PyTree:
    """Return the parameters that were split into these."""
    return jax.tree.map(lambda t, f: f if t is None else t, trained, frozen, is_leaf=lambda x: x is None)


def _everything(name: str, x: jax.ShapeDtypeStruct) -> bool:
    return True


def _predicate(trainable: Trainable) -> Callable[[str, jax.ShapeDtypeStruct], bool]:
    if not isinstance(trainable, str):
        return trainable
    try:
        matches = tree.ends_in(trainable)
    except re.error as error:
        raise UsageError(f"trainable={trainable!r} is not a regular expression: {error}.") from None
    return lambda name, x: matches(name)


def _check_chosen(trainable: Trainable, params: PyTree, chosen: PyTree) -> None:
    leaves, trains = tree.named_leaves(params), jax.tree.leaves(chosen)
    if not leaves:
        raise UsageError("the model has no parameters: it returned a tree without arrays.")
    if not any(trains):
        some = ", ".join(f"params/{name}" for name in list(leaves)[:8]) + (" …" if len(leaves) > 8 else "")
        raise UsageError(
            f"nothing to train: trainable={trainable!r} matches none of {len(leaves)} parameters: {some}.\n"
            "  A pattern must match a whole name or its last components."
        )
    fixed = [
        f"params/{name} is {x.dtype}"
        for (name, x), train in zip(leaves.items(), trains, strict=True)
        if train and not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)
    ]
    if fixed:
        raise UsageError(
            f"parameters that are trained must be floating, but {', '.join(fixed)}.\n"
            "  Train the others only, with `Only(pattern, tx)`; or keep constants out of the parameters: "
            "close the loss over them, or put them in the batch."
        )
