"""What differs from parameter to parameter, in tables of (pattern, value): the first that matches stands."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import optax

from meshwright import tree
from meshwright.errors import UsageError
from meshwright.tree import PyTree

V = TypeVar("V")
ByPath = Sequence[tuple[str, V]]
"""Patterns as `sharding.match` reads them, of names such as `params/layers/0/q`, and a value for each."""


def compiled(pattern: str, what: str) -> Callable[[str], bool]:
    """Return whether a name ends in `pattern`.

    Raises:
      UsageError: it is not a regular expression; the message calls it `what`.
    """
    try:
        return tree.ends_in(pattern)
    except re.error as error:
        raise UsageError(f"{what}={pattern!r} is not a regular expression: {error}.") from None


def first_match(rules: ByPath[V], default: V) -> Callable[[str], V]:
    """Return the function from a name to the value of the first rule that matches it.

    Raises:
      UsageError: a pattern is not a regular expression.
    """
    rules = tuple(rules)
    for pattern, _ in rules:
        compiled(pattern, "pattern")
    # Closing over what was given, not over what is made of it, is what a description of an experiment shows.
    return lambda name: next((value for pattern, value in rules if tree.ends_in(pattern)(name)), default)


def by_path(rules: ByPath[optax.GradientTransformation]) -> optax.GradientTransformationExtraArgs:
    """Return several optimizers as one: `by_path([("bias", optax.sgd(0.1)), (".*", optax.adamw(1e-3))])`.

    A parameter belongs to the first rule that matches it, and only that optimizer has a state for it.

    Raises:
      UsageError: a pattern is not a regular expression; or, in `init`, parameters that no rule matches.
    """
    patterns = [pattern for pattern, _ in rules]
    number = first_match([(pattern, str(i)) for i, pattern in enumerate(patterns)], "")

    def labels(params: PyTree) -> PyTree:
        found = tree.map_named(lambda name, _: number(f"params/{name}"), params)
        missed = [f"params/{name}" for name, label in tree.named_leaves(found).items() if not label]
        if missed:
            raise UsageError(
                f"by_path: no optimizer for {', '.join(missed)}.\n  The patterns are "
                f"{', '.join(map(repr, patterns))}. Add one that matches, or a last "
                "('.*', tx) for all others."
            )
        return found

    return optax.partition({str(i): tx for i, (_, tx) in enumerate(rules)}, labels)


def scale_by_path(factors: ByPath[float]) -> optax.GradientTransformation:
    """Multiply updates by a factor for each parameter, 1 where no pattern matches.

    After an optimizer it is a multiplier of the learning rate (and of its weight decay):
    `optax.chain(optax.adamw(1e-3), scale_by_path([("embed", 0.1)]))`.
    """
    factor = first_match(factors, 1.0)

    def scaled(updates: PyTree, params: PyTree) -> PyTree:
        return tree.map_named(lambda name, x: factor(f"params/{name}") * x, updates)

    return optax.stateless(scaled)


def decay_by_path(decays: ByPath[float]) -> optax.GradientTransformation:
    """Add to the updates each parameter times its weight decay, 0 where no pattern matches.

    Decoupled decay (Loshchilov and Hutter, 2019) stands between an optimizer's scaling and the learning
    rate: `optax.chain(optax.scale_by_adam(), decay_by_path(...), optax.scale_by_learning_rate(1e-3))`.
    """
    decay = first_match(decays, 0.0)

    def decayed(updates: PyTree, params: PyTree) -> PyTree:
        def one(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
            by = decay(f"params/{name}")
            return update + by * param if by else update

        return tree.map_named(one, updates, params)

    return optax.stateless(decayed)
