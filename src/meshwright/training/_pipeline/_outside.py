"""The loss before and after a stack of layers, for groups of microbatches: one on each device of the axis."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.parallel._internal import split_over_stages
from meshwright.training._pipeline._cut import Cut
from meshwright.training._pipeline._ring import plain
from meshwright.training._pipeline._schedule import OneForwardOneBackward
from meshwright.training._pipeline._stage import Operands, Stage
from meshwright.training._pipeline._stage_arrays import along, over_microbatches


class Outside:
    """The parts of the loss before and after the stack."""

    def __init__(
        self,
        cut: Cut,
        stage: Stage,
        weights: Sequence[Any],
        pieces: Sequence[Any],
        schedule: OneForwardOneBackward,
    ) -> None:
        self._cut, self._stage, self._all_weights, self._pieces = cut, stage, list(weights), pieces
        self._schedule = schedule
        self.weights = [weights[i] for i in cut.weights_outside]
        """The weights that have a gradient here."""

    def operands_of(self, g: Any) -> tuple[Operands, Operands]:
        """Return the moving operands of a group's microbatches, and their operands for each layer.

        After the last group these are those of the last.
        """

        def operands_of_piece(piece: list[Any]) -> list[Any]:
            return [plain(x) for x in self._cut.own_operands(self._all_weights, piece)]

        operands = dict(zip(self._cut.own, over_microbatches(operands_of_piece)(self._group(g)), strict=True))
        operands = jax.tree.map(split_over_stages, operands)
        own = {i: self._by_stage(operands[i]) for i in self._stage.own_of_layers}
        return {i: operands[i] for i in self._stage.moving}, own

    def outputs_of(self, g: Any, state: Operands, aux: list[Any]) -> tuple[list[Any], Any]:
        """Return the outputs of a group, summed, and the gradients of `weights`, the state and `aux`."""
        stage, places = self._stage, g * self._schedule.stages + jnp.arange(self._schedule.stages)
        is_real = places < self._schedule.microbatches

        def outputs_of_piece(piece: list[Any], state: Operands, aux: list[Any], is_real: Any) -> Any:
            def total(weights: list[Any], of_state: Operands, of_aux: Operands) -> Any:
                all_aux = {**dict(enumerate(aux)), **of_aux}
                results = stage.results({**state, **of_state}, [all_aux[j] for j in range(len(aux))])
                outputs = self._cut.outputs(self._with(weights), piece, results)
                return outputs[0], outputs

            of_state = {i: state[i] for i in stage.carried if i in stage.trained}
            of_aux = {j: aux[j] for j in stage.trained_aux}
            value, pull, outputs = jax.vjp(total, self.weights, of_state, of_aux, has_aux=True)
            return outputs, pull(is_real.astype(value.dtype))

        by_microbatch = [self._by_microbatch(x) for x in aux]
        of_group = over_microbatches(outputs_of_piece)(self._group(g), state, by_microbatch, is_real)
        outputs, (of_weights, of_state, of_aux) = of_group
        outputs = [jnp.where(along(is_real, x), x, 0).sum(0).astype(x.dtype) for x in outputs]
        return outputs, (of_weights, of_state, {j: self._by_stage(x) for j, x in of_aux.items()})

    def back(self, g: Any, state: Operands, own: Operands) -> list[Any]:
        """Return the gradients of `weights` from those of what a group brought, which is computed again."""
        trained = [i for i in self._cut.own if i in self._cut.trained]
        own = {i: jnp.where(g < 0, 0, self._by_microbatch(x)).astype(x.dtype) for i, x in own.items()}

        def gradients_of_piece(piece: list[Any], gradients: Operands) -> list[Any]:
            def brought(weights: list[Any]) -> Operands:
                operands = self._cut.own_operands(self._with(weights), piece)
                return {i: x for i, x in zip(self._cut.own, operands, strict=True) if i in trained}

            with jax.named_scope("computed_again"):
                pull = jax.vjp(brought, self.weights)[1]
            return pull(gradients)[0]

        gradients = {i: x for i, x in {**state, **own}.items() if i in trained}
        return over_microbatches(gradients_of_piece)(self._group(g), gradients)

    def _with(self, weights: list[Any]) -> list[Any]:
        """Return all weights, with those in place that are differentiated."""
        new = dict(zip(self._cut.weights_outside, weights, strict=True))
        return [new.get(i, x) for i, x in enumerate(self._all_weights)]

    def _group(self, g: Any) -> list[Any]:
        index = jnp.clip(g, 0, self._schedule.groups - 1)
        return [jax.lax.dynamic_index_in_dim(x, index, keepdims=False) for x in self._pieces]

    def _by_stage(self, x: Any) -> Any:
        """Return [p microbatches, L, ...] as [p stages, p microbatches, L / p, ...]."""
        p = self._schedule.stages
        return split_over_stages(x.reshape(p, p, -1, *x.shape[2:]).swapaxes(0, 1))

    def _by_microbatch(self, x: Any) -> Any:
        """Return [p stages, p microbatches, L / p, ...] as [p microbatches, L, ...]."""
        return split_over_stages(x.swapaxes(0, 1).reshape(x.shape[1], -1, *x.shape[3:]))
