"""A stage of a pipeline, for one microbatch: its layers, and the gradient of its layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from meshwright.program._internal import bind, evaluate, jaxprs
from meshwright.training._pipeline._cut import Cut, is_inexact
from meshwright.training._pipeline._ring import key_type, plain

Operands = Mapping[int, Any]
"""Some operands of the scan over layers, by their number."""


class Stage:
    """The layers of one stage. Operands are plain numbers, also those that are keys."""

    def __init__(self, cut: Cut) -> None:
        scan = jaxprs.scan_of(cut.scan)
        self._jaxpr, self._keys = scan.body, [key_type(var.aval) for var in cut.scan.invars]
        first, last = scan.num_consts, scan.num_whole
        self.carried = range(first, last)
        """The operands that each layer changes."""
        self.moving = [i for i in cut.own if i < last]
        """The operands that go with a microbatch through the stages: what is carried, and own constants."""
        self.own_of_layers = [i for i in cut.own if i >= last]
        """The operands that each microbatch has for each layer."""
        self.shared = [i for i in cut.shared if i < last]
        self.weights = [i for i in cut.shared if i >= last]
        """The operands that each layer has for all microbatches."""
        self.trained = {i for i in cut.trained if i not in self.carried} | {
            i for i in self.carried if is_inexact(cut.scan.invars[i])
        }
        """The operands that have a gradient."""
        self.trained_aux = [j for j, var in enumerate(cut.scan.outvars[scan.num_carry :]) if is_inexact(var)]
        """The results of each layer that have a gradient."""
        self._of_results = [key_type(var.aval) for var in cut.scan.outvars[: scan.num_carry]]

    def forward(self, shared: Operands, weights: Operands, state: Operands, own: Operands) -> Any:
        """Return the moving operands after the layers, and the other results of each layer."""
        constants = {**shared, **{i: state[i] for i in self.moving if i not in self.carried}}

        def one_layer(carry: Operands, layer: Operands) -> tuple[Operands, list[Any]]:
            operands = sorted({**constants, **carry, **layer}.items())
            arguments = [_typed(x, key) for (_, x), key in zip(operands, self._keys, strict=True)]
            results = [plain(x) for x in evaluate(self._jaxpr, arguments, bind)]
            number = len(self.carried)
            return dict(zip(self.carried, results[:number], strict=True)), results[number:]

        carry, aux = jax.lax.scan(one_layer, {i: state[i] for i in self.carried}, {**weights, **own})
        return {**state, **carry}, aux

    def backward(self, operands: tuple[Operands, ...], state: Operands, aux: Sequence[Any]) -> Any:
        """Return the gradients of the four kinds of operands of `forward`, of those that have one."""

        def of_trained(trained: tuple[Operands, ...]) -> Any:
            together = ({**all_of, **some} for all_of, some in zip(operands, trained, strict=True))
            state, aux = self.forward(*together)
            return self.only_trained(state), [aux[j] for j in self.trained_aux]

        with jax.named_scope("computed_again"):
            pull = jax.vjp(of_trained, tuple(map(self.only_trained, operands)))[1]
        return pull((state, aux))[0]

    def only_trained(self, operands: Operands) -> Operands:
        """Return those operands that have a gradient."""
        return {i: x for i, x in operands.items() if i in self.trained}

    def results(self, state: Operands, aux: Sequence[Any]) -> list[Any]:
        """Return the results of the scan, given what moved and the `aux` of all layers."""
        carry = (state[i] for i in self.carried)
        return [*(_typed(x, key) for x, key in zip(carry, self._of_results, strict=True)), *aux]


def _typed(x: Any, key: Any) -> Any:
    return x if key is None else jax.random.wrap_key_data(x, impl=key)
