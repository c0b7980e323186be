"""Settings by parameter: tables of pairs (pattern, value), in which the first match decides.

These optimizers keep their tables in their states, as nodes without arrays. `tables_in` therefore finds the
tables inside a chain, a mask or a guard. The patterns are checked when the whole state is described. An
`init` inside a mask cannot check them, because it sees only some of the parameters.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import optax

from meshwright.base._internal import PyTree, Table, tree, value_of
from meshwright.errors import UsageError

V = TypeVar("V")
ByPath = Sequence[tuple[str, V]]
"""Pairs of a pattern and a value. Patterns match names such as `params/layers/0/q`; see `patterns`."""


class ByPathState(NamedTuple):
    """The state of `by_path`."""

    inner_states: dict[str, optax.OptState]
    """The states of the optimizers, by the number of the rule."""
    table: Table


def tables_in(opt_state: optax.OptState) -> list[Table]:
    """Return the pattern tables in an optimizer's state, each table once."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, Table))
    return list(dict.fromkeys(node for node in nodes if isinstance(node, Table)))


def by_path(rules: ByPath[optax.GradientTransformation]) -> optax.GradientTransformationExtraArgs:
    """Return several optimizers as one: `by_path([("bias", optax.sgd(0.1)), (".*", optax.adamw(1e-3))])`.

    A parameter belongs to the first rule that matches it, and only that optimizer has a state for it.

    Raises:
      UsageError: A pattern is not a regular expression. Or, in `init`, no rule matches some parameters.

    Example:
      >>> params = {"w": jnp.ones(()), "bias": jnp.ones(())}
      >>> optimizer = mw.training.by_path([("bias", optax.sgd(0.1)), (".*", optax.sgd(1.0))])
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> {name: round(float(update), 3) for name, update in updates.items()}
      {'bias': -0.1, 'w': -1.0}
    """
    # A tuple would be taken for the parts of a chain.
    rules = list(rules)
    Table.of("by_path", rules)

    def init(params: PyTree) -> Any:
        return ByPathState(_parts(rules).init(params).inner_states, Table.of("by_path", rules))

    def update(updates: PyTree, state: Any, params: PyTree = None, **more: Any) -> tuple[PyTree, Any]:
        updates, parts = _parts(rules).update(updates, state, params, **more)
        return updates, state._replace(inner_states=parts.inner_states)

    return optax.GradientTransformationExtraArgs(init, update)


def _parts(rules: ByPath[optax.GradientTransformation]) -> Any:
    """Return one optimizer that contains the others, labelled by the numbers of their rules."""
    numbers = [(pattern, str(i)) for i, (pattern, _) in enumerate(rules)]

    def labels(params: PyTree) -> PyTree:
        labelled = tree.map_named(lambda name, _: value_of(numbers, f"params/{name}", ""), params)
        missed = [f"params/{name}" for name, label in tree.named_leaves(labelled).items() if not label]
        if missed:
            raise UsageError(
                f"by_path: no optimizer for {', '.join(missed)}.\n  The patterns are "
                f"{', '.join(repr(pattern) for pattern, _ in rules)}. Add one that matches, or a last "
                "('.*', optimizer) for all others."
            )
        return labelled

    return optax.partition({str(i): optimizer for i, (_, optimizer) in enumerate(rules)}, labels)


def scale_by_path(factors: ByPath[float]) -> optax.GradientTransformation:
    """Multiply the updates of each parameter by a factor, which is 1 if no pattern matches.

    After an optimizer, the factor multiplies the learning rate and the weight decay:
    `optax.chain(optax.adamw(1e-3), scale_by_path([("embed", 0.1)]))`.

    Example:
      >>> params = {"embed": jnp.ones(()), "w": jnp.ones(())}
      >>> optimizer = optax.chain(optax.sgd(1.0), mw.training.scale_by_path([("embed", 0.5)]))
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> {name: float(update) for name, update in updates.items()}
      {'embed': -0.5, 'w': -1.0}
    """
    factors = list(factors)
    Table.of("scale_by_path", factors)

    def init(params: PyTree) -> Any:
        return Table.of("scale_by_path", factors)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        scaled = tree.map_named(lambda name, x: value_of(factors, f"params/{name}", 1.0) * x, updates)
        return scaled, state

    return optax.GradientTransformation(init, update)


def decay_by_path(decays: ByPath[float]) -> optax.GradientTransformation:
    """Add each parameter times its weight decay to the updates. The decay is 0 if no pattern matches.

    Decoupled weight decay (Loshchilov and Hutter, 2019) comes between the scaling of an optimizer and
    the learning rate:
    `optax.chain(optax.scale_by_adam(), decay_by_path(...), optax.scale_by_learning_rate(1e-3))`.

    Example:
      >>> params = {"w": jnp.ones(()), "bias": jnp.ones(())}
      >>> decay = mw.training.decay_by_path([("w", 0.5)])
      >>> updates, _ = decay.update(jax.tree.map(jnp.zeros_like, params), decay.init(params), params)
      >>> {name: float(update) for name, update in updates.items()}
      {'bias': 0.0, 'w': 0.5}
    """
    decays = list(decays)
    Table.of("decay_by_path", decays)

    def init(params: PyTree) -> Any:
        return Table.of("decay_by_path", decays)

    def update(updates: PyTree, state: Any, params: PyTree = None) -> tuple[PyTree, Any]:
        def decayed(name: str, update: jax.Array, param: jax.Array) -> jax.Array:
            decay = value_of(decays, f"params/{name}", 0.0)
            return update + decay * param if decay else update

        return tree.map_named(decayed, updates, params), state

    return optax.GradientTransformation(init, update)
