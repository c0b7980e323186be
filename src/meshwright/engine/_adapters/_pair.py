"""A pair of plain functions: `init(key) -> params` and `apply(params, *args) -> out`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshwright.engine._adapters._library import Axes, PyTree, abstract, accepted, arrays, mode_and_key, reach
from meshwright.errors import UsageError
from meshwright.training._internal import Variables


class Pair:
    """The user's own two functions. Their trees are used as they are."""

    per_example = False
    has_dropout = False

    def __init__(
        self,
        init: Callable[..., PyTree],
        apply: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ):
        self._init, self._apply, self._examples = init, apply, (args, kwargs)
        self.axes: Mapping[str, Axes] = {}
        _, first = abstract(lambda key: (None, self._made(key)))
        self.stateful = isinstance(first, Variables)
        if self.stateful and "model_state" not in accepted(apply, {"model_state": None}):
            raise UsageError(
                "init returns Variables(params, model_state), but apply has no parameter `model_state`.\n"
                "  Write apply(params, *args, model_state), and return (out, new_model_state)."
            )

    def init(self, key: jax.Array) -> Variables:
        """Return the result of the user's `init`, with the state {} if it has none."""
        variables = self._made(key)
        return variables if isinstance(variables, Variables) else Variables(variables, {})

    def bind(self, params: PyTree, model_state: PyTree, key: jax.Array | None, train: bool) -> Any:
        """Return `apply` with everything but the inputs filled in."""
        options = {"model_state": model_state, **mode_and_key(train, key)}
        return functools.partial(self._apply, params, **accepted(self._apply, options))

    def call(
        self,
        model: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Mapping[str, Any],
        path: str,
    ) -> tuple[Any, PyTree]:
        """Return the output and the new state."""
        returned = reach(model, path)(*args, **kwargs)
        if not self.stateful:
            return returned, {}
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError(
                "apply must return (out, new_model_state); it returned a value of type "
                f"{type(returned).__name__}."
            )
        return returned

    def _made(self, key: jax.Array) -> PyTree:
        args, kwargs = arrays(self._examples)
        return self._init(key, *args, **kwargs)
