"""1F1B: a gradient in which a stage goes back through one microbatch for each that it goes forward through.

Autodiff goes back only when all microbatches have gone forward, so the loss has a gradient of its own.
Microbatches come in groups of p, one for each of the p devices. M microbatches are G groups, M = G p:

    p - 1 ticks    forward             group 0 waits in front of stage 0
    p ticks        forward             group 0 leaves the last stage
    G - 1 times    p ticks of both     group g leaves the last stage, and group g - 1 enters it, back
    p ticks        back                group G - 1 enters the last stage, back
    p - 1 ticks    back

When a group has left the last stage, each device computes the rest of the loss and its gradient for one of
its microbatches. So a gradient begins up to p ticks later than in Narayanan et al. (arXiv:2104.04473). That
takes no time, as all devices work at the same tick, and a microbatch costs a stage only its input until then:
the layers are computed again. Both directions take M + p - 1 ticks.

Queues turn by one device at each tick. What leaves a stage takes the place of what enters another:

    forward    stage 0 gets the queue's head, and the queue what left the last stage
    back       the last stage gets the queue's head, and the queue what left stage 0

A device that has nothing to do goes forward with a microbatch that nobody reads, and back with zeros, through
inputs that were real.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.parallel._internal import layers_of_stage, split_over_stages
from meshwright.program._internal import jaxprs
from meshwright.training._pipeline._cut import Cut
from meshwright.training._pipeline._outside import Outside
from meshwright.training._pipeline._ring import plain
from meshwright.training._pipeline._schedule import OneForwardOneBackward
from meshwright.training._pipeline._stage import Operands, Stage
from meshwright.training._pipeline._stage_arrays import (
    along,
    at_index,
    over_microbatches,
    put,
    sent_on,
    swapped,
)

_NUM_INPUT_GROUPS = 3
"""The number of groups of which a stage keeps inputs: 3 p - 1 microbatches are in flight."""
_LOADED = 4
"""The number of groups of which a stage has the operands for each layer: one more group is queued."""


class _Carry(NamedTuple):
    """All that changes with the ticks. The first dimension is that of the stages, but in `outputs`."""

    state: Operands
    """The next input of each stage, going forward."""
    queue: Operands
    inputs: Operands
    """The inputs of each stage by microbatch, [p, 3 p, ...]."""
    own: Operands
    """The operands of each microbatch for each layer, [p, 4 p, layers, ...]; later their gradients."""
    aux: list[Any]
    """The other results of layers, [p, 3 p, layers, ...]; after the loss, their gradients."""
    back: Operands
    """The gradients that each stage gets next, going back."""
    back_queue: Operands
    of_layers: tuple[Operands, Operands]
    """The sums of the gradients of shared constants, and of the layers' weights."""
    of_outside: list[Any]
    """The sums of the gradients of weights before and after the stack, of each device's microbatches."""
    outputs: list[Any]
    """The sums of the loss and the metrics."""


def loss_and_gradients(
    cut: Cut, weights: Sequence[Any], pieces: Sequence[Any], schedule: OneForwardOneBackward
) -> tuple[list[Any], list[Any]]:
    """Return the outputs of an objective, summed over microbatches, and the gradient of the first of them."""
    stage = Stage(cut)
    depth = layers_of_stage(jaxprs.num_turns(cut.scan), schedule.stages)
    outside = Outside(cut, stage, weights, pieces, schedule)
    shared = dict(zip(cut.shared, map(plain, cut.shared_operands(weights)), strict=True))
    layers = {
        i: x.reshape(schedule.stages, depth, *x.shape[1:]) for i, x in shared.items() if i in stage.weights
    }
    ticks = _Ticks(
        stage,
        outside,
        {i: shared[i] for i in stage.shared},
        jax.tree.map(split_over_stages, layers),
        schedule,
    )
    carry = _after_all(ticks, schedule)
    sums = {i: x.sum(0) for i, x in carry.of_layers[0].items()}
    sums |= {i: x.reshape(-1, *x.shape[2:]) for i, x in carry.of_layers[1].items()}
    return carry.outputs, _of_weights(cut, weights, sums, [x.sum(0) for x in carry.of_outside])


def _after_all(ticks: "_Ticks", schedule: OneForwardOneBackward) -> _Carry:
    """Return the carry after all ticks."""
    p, groups, early = schedule.stages, schedule.groups, schedule.before_back
    carry, second = ticks.begun()

    def forward(carry: _Carry, t: Any) -> tuple[_Carry, None]:
        queue = jax.tree.map(lambda x, y: jnp.where(t == p - 1, x, y), second, carry.queue)
        return ticks.forward(carry._replace(queue=queue), t), None

    def both_ways(carry: _Carry, t: Any) -> tuple[_Carry, None]:
        return ticks.back(ticks.forward(carry, t), t - early), None

    def group(carry: _Carry, g: Any) -> tuple[_Carry, None]:
        carry = ticks.queued(carry, g + 1)
        carry, _ = jax.lax.scan(both_ways, carry, (g + 1) * p - 1 + jnp.arange(p))
        return ticks.through_after(ticks.through_before(carry, g - 2, carry.back_queue), g), None

    def back(pair: tuple[_Carry, Operands], n: Any) -> tuple[tuple[_Carry, Operands], None]:
        carry, last_but_one = pair
        is_through = n == p
        last_but_one = jax.tree.map(lambda x, y: jnp.where(is_through, x, y), carry.back_queue, last_but_one)
        nothing = jax.tree.map(lambda x: jnp.where(is_through, 0, x).astype(x.dtype), carry.back_queue)
        return (ticks.back(carry._replace(back_queue=nothing), (groups - 1) * p + n), last_but_one), None

    def last(carry: _Carry, numbered: Any) -> tuple[_Carry, None]:
        return ticks.through_before(carry, *numbered), None

    carry, _ = jax.lax.scan(forward, carry, jnp.arange(early))
    carry, _ = jax.lax.scan(group, ticks.through_after(carry, 0), jnp.arange(1, groups))
    (carry, last_but_one), _ = jax.lax.scan(back, (carry, carry.back_queue), jnp.arange(early))
    carry = ticks.turned_back(carry)
    queues = jax.tree.map(lambda *x: jnp.stack(x), last_but_one, carry.back_queue)
    return jax.lax.scan(last, carry, (groups - 2 + jnp.arange(2), queues))[0]


class _Ticks:
    """The ticks, and what is done between them."""

    def __init__(
        self,
        stage: Stage,
        outside: Outside,
        shared: Operands,
        layers: Operands,
        schedule: OneForwardOneBackward,
    ) -> None:
        self._stage, self._outside, self._shared, self._layers = stage, outside, shared, layers
        self._schedule, self._p, self._stages = schedule, schedule.stages, jnp.arange(schedule.stages)

    def begun(self) -> tuple[_Carry, Operands]:
        """Return the carry before the first tick, and the queue of the second group."""
        two = jnp.minimum(jnp.arange(2), self._schedule.groups - 1)
        queues, owns = jax.lax.map(self._outside.operands_of, two)
        queue, second = ({i: x[n] for i, x in queues.items()} for n in range(2))
        own = {i: split_over_stages(jnp.concatenate([*x] * (_LOADED // 2), 1)) for i, x in owns.items()}
        num_inputs, trained = _NUM_INPUT_GROUPS * self._p, self._stage.only_trained
        first = {i: x[:, 0] for i, x in own.items()}
        aux = jax.eval_shape(lambda: self._forward(queue, first)[1])
        back = jax.tree.map(lambda x: _zeros(x.shape, x.dtype), trained(queue))
        state, turned = self._turned(queue, queue)
        carry = _Carry(
            state=state,
            queue=turned,
            inputs={i: split_over_stages(jnp.stack([x] * num_inputs, 1)) for i, x in queue.items()},
            own=own,
            aux=[_zeros((self._p, num_inputs, *x.shape[1:]), x.dtype) for x in aux],
            back=back,
            back_queue=back,
            of_layers=(
                {i: _sums((self._p, *x.shape), x.dtype) for i, x in trained(self._shared).items()},
                {i: _sums(x.shape, x.dtype) for i, x in trained(self._layers).items()},
            ),
            of_outside=[_sums((self._p, *x.shape), x.dtype) for x in self._outside.weights],
            outputs=[],
        )
        return carry, second

    def queued(self, carry: _Carry, g: Any) -> _Carry:
        """Queue the microbatches of a group."""
        queue, own = self._outside.operands_of(g)
        return carry._replace(
            queue=queue, own={i: self._put(carry.own[i], x, g, _LOADED) for i, x in own.items()}
        )

    def forward(self, carry: _Carry, t: Any) -> _Carry:
        """Return the carry after all stages have gone forward, at tick t."""
        input_slot, loaded = self._places(t - self._stages)
        inputs = put(carry.inputs, carry.state, input_slot)
        state, aux = self._forward(carry.state, at_index(carry.own, loaded))
        state, queue = self._turned(jax.tree.map(sent_on, state), carry.queue)
        return carry._replace(state=state, queue=queue, inputs=inputs, aux=put(carry.aux, aux, input_slot))

    def back(self, carry: _Carry, t: Any) -> _Carry:
        """Return the carry after all stages have gone back; t counts the ticks from the first such."""
        carry, n = self.turned_back(carry), t - (self._p - 1 - self._stages)
        is_active = (n >= 0) & (n < self._schedule.places)
        input_slot, loaded = self._places(n)
        inputs, own = at_index(carry.inputs, input_slot), at_index(carry.own, loaded)
        of_aux = at_index([carry.aux[j] for j in self._stage.trained_aux], input_slot)
        of_aux = [jnp.where(along(is_active, x), x, 0).astype(x.dtype) for x in of_aux]
        backward = self._on_stages(self._stage.backward, ((None, 0, 0, 0), 0, 0))
        *of_layers, state, of_own = backward((self._shared, self._layers, inputs, own), carry.back, of_aux)
        of_own = {i: jnp.where(along(is_active, x), x, own[i]) for i, x in of_own.items()}
        of_own = put({i: carry.own[i] for i in of_own}, of_own, loaded)
        return carry._replace(
            back=jax.tree.map(lambda x: sent_on(x, -1), state),
            own={**carry.own, **of_own},
            of_layers=jax.tree.map(_added, carry.of_layers, tuple(of_layers)),
        )

    def turned_back(self, carry: _Carry) -> _Carry:
        """Move the next gradient into the last stage, and the gradient that left stage 0 into the queue."""
        queue = jax.tree.map(lambda x: sent_on(x, -1), carry.back_queue)
        back, queue = swapped(carry.back, queue, self._p - 1)
        return carry._replace(back=back, back_queue=queue)

    def through_after(self, carry: _Carry, g: Any) -> _Carry:
        """Compute the rest of the loss for a group that has left the last stage, and queue its gradient."""
        aux = [self._block(x, g, _NUM_INPUT_GROUPS) for x in carry.aux]
        outputs, (of_weights, of_state, of_aux) = self._outside.outputs_of(g, carry.queue, aux)
        queue = {i: of_state.get(i, jnp.zeros_like(x)) for i, x in carry.back_queue.items()}
        new = {j: self._put(carry.aux[j], x, g, _NUM_INPUT_GROUPS) for j, x in of_aux.items()}
        return carry._replace(
            aux=[new.get(j, x) for j, x in enumerate(carry.aux)],
            back_queue=jax.tree.map(split_over_stages, queue),
            of_outside=jax.tree.map(_added, carry.of_outside, of_weights),
            outputs=[x + y for x, y in zip(carry.outputs or [0] * len(outputs), outputs, strict=True)],
        )

    def through_before(self, carry: _Carry, g: Any, state: Operands) -> _Carry:
        """Add the gradient of what is before the stack, for a group that went back through stage 0."""
        own = {i: self._block(x, g, _LOADED) for i, x in carry.own.items() if i in self._stage.trained}
        of_group = self._outside.back(g, state, own)
        return carry._replace(of_outside=jax.tree.map(_added, carry.of_outside, of_group))

    def _forward(self, state: Operands, own: Operands) -> Any:
        forward = self._on_stages(self._stage.forward, (None, 0, 0, 0))
        return forward(self._shared, self._layers, state, own)

    def _on_stages(self, function: Callable[..., Any], in_axes: Any) -> Callable[..., Any]:
        with_name = over_microbatches(function, in_axes)
        scope = f"busy_{self._schedule.microbatches}_of_{self._schedule.ticks}_ticks"
        return jax.named_scope(scope)(with_name)

    def _turned(self, state: Operands, queue: Operands) -> tuple[Operands, Operands]:
        state, queue = swapped(state, queue, 0)
        return state, jax.tree.map(lambda x: sent_on(x, -1), queue)

    def _places(self, n: Any) -> tuple[Any, Any]:
        """Return the indices of a microbatch among the kept inputs, and among the loaded operands."""
        return n % (_NUM_INPUT_GROUPS * self._p), n % (_LOADED * self._p)

    def _block(self, x: Any, g: Any, groups: int) -> Any:
        return jax.lax.dynamic_slice_in_dim(x, g % groups * self._p, self._p, 1)

    def _put(self, x: Any, new: Any, g: Any, groups: int) -> Any:
        return jax.lax.dynamic_update_slice_in_dim(x, new, g % groups * self._p, 1)


def _of_weights(cut: Cut, weights: Sequence[Any], sums: Operands, of_outside: Sequence[Any]) -> list[Any]:
    """Return the gradients of all weights, from those of the stack's operands and those outside it."""
    inexact = [i for i, x in enumerate(weights) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def operands(some: list[Any]) -> Operands:
        new = dict(zip(inexact, some, strict=True))
        shared = cut.shared_operands([new.get(i, x) for i, x in enumerate(weights)])
        return {i: x for i, x in zip(cut.shared, shared, strict=True) if i in sums}

    primals, pull = jax.vjp(operands, [weights[i] for i in inexact])
    gradients = dict(
        zip(inexact, pull({i: x.astype(primals[i].dtype) for i, x in sums.items()})[0], strict=True)
    )
    for i, x in zip(cut.weights_outside, of_outside, strict=True):
        gradients[i] = (gradients[i] + x).astype(gradients[i].dtype)
    return [gradients.get(i) for i in range(len(weights))]


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    return split_over_stages(jnp.zeros(shape, dtype))


def _sums(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return zeros in the dtype in which gradients add up."""
    return _zeros(shape, jnp.promote_types(dtype, jnp.float32))


def _added(total: Any, x: Any) -> Any:
    return split_over_stages(total + x.astype(total.dtype))
