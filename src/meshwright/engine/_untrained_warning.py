"""Remarks on what a step does not use or takes otherwise than the loss, as the traced program shows.

A trained parameter that the loss is not computed from belongs to a layer that was forgotten. Batch statistics
that the step returns as they came belong to a model that is called in evaluation mode. And a model that does
not read the segments of packed rows lets their texts attend to each other. Another array of the batch that it
does not read may be carried along on purpose, or have a name that the loss does not know. Muon and GaLore
take each array of two dimensions for a matrix, also a stack of vectors that the loss scans over.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax

from meshwright.base._internal import tree
from meshwright.engine._training import Training
from meshwright.errors import listed
from meshwright.program._internal import Program, Value, influences, program_of, stacked, walk

_STATISTIC = re.compile(r"(.*/)?(mean|var|\w*state_index/init/\d+)")
"""The names of batch statistics in Flax, and in Equinox."""
_MOST = 3
_OF_MATRICES = {
    optax.contrib.MuonState: (
        "Muon",
        "mu",
        "muon(..., muon_weight_dimension_numbers=lambda params: jax.tree.map(lambda x: "
        "MuonDimensionNumbers(1, 2) if x.ndim == 3 else None, params))",
    ),
    optax.contrib.GaLoreState: ("GaLore", "projector", "galore(..., weight_dimension_numbers=...)"),
}
"""The states of optimizers of matrices: their names, the arrays for matrices in them, and what to write."""
SEGMENTS = "segments"
"""The name of the array that says which text of its row each token belongs to; `mw.data.text` makes it."""


def unused(training: Training) -> Iterator[str]:
    """Yield warnings about parameters and examples without influence, unused dropout, and fixed statistics.

    Of an update that the user wrote, only changes of frozen parameters are told. Others are judged only if
    all batches have one shape: another shape has another program, which may use them. Nothing is traced.
    """
    step = training.step
    if step.jaxpr is None or training.other_batches:
        return
    program, names = program_of(step.jaxpr), tree.leaf_names(training.target)
    inputs = dict(zip(names, program.inputs, strict=False))
    if step.minimised is None:
        outputs = dict(zip(names, program.outputs, strict=False))
        if changed := [name for name in training.frozen if outputs[name] is not inputs[name]]:
            yield f"the update changes parameters that are not trainable: {listed(changed, _MOST)}"
        return
    trained = [name for name in _under("params", inputs) if name not in training.frozen]
    used = influences(program, _loss(program, len(names), step.returned[1].mean_names, step.minimised))
    if idle := [name for name in trained if inputs[name] not in used]:
        have = "has" if len(idle) == 1 else "have"
        yield (
            f"{len(idle)} of {len(trained)} trained parameters {have} no influence on the loss: "
            f"{listed(idle, _MOST)}. Use them in the loss, freeze them, or leave them out of the model"
        )
    for optimizer, stacks, remedy in _stacks_as_matrices(program, inputs, training.target.opt_state):
        yield (
            f"{optimizer} takes {listed(stacks, _MOST)} for matrices, but the loss scans over their first "
            f"dimension, as over stacks of vectors. Name the dimensions: {remedy}"
        )
    of_batch = dict(zip(tree.leaf_names(training.batch), program.inputs[len(names) :], strict=False))
    yield from _of_examples(training, of_batch, used)
    if training.has_dropout and inputs["seed"] not in used:
        yield (
            "the model has dropout, but the loss draws no random numbers. If it should, call the model in "
            "training mode in the loss, for example model(x, train=True)"
        )
    fixed = list(_fixed(inputs, dict(zip(names, program.outputs, strict=False)), training.frozen))
    if fixed:
        yield (
            f"training does not change the batch statistics: {listed(fixed, _MOST)}. If it should, call the "
            "model in training mode in the loss, for example model(x, train=True), and return its new state"
        )


def _of_examples(training: Training, of_batch: Mapping[str, Value], used: Collection[Value]) -> Iterator[str]:
    """Yield warnings about arrays of the batch, by name, that are not among the used values, and segments."""
    unread = [name for name, value in of_batch.items() if value not in used]
    if others := [name for name in unread if name.split("/")[-1] != SEGMENTS]:
        yield (
            f"{len(others)} of {len(of_batch)} arrays of the batch have no influence on the loss: "
            f"{', '.join(others)}. If one should, the loss may read it under another name"
        )
    if len(others) < len(unread):
        yield (
            "the examples have segments, from which the loss is not computed, so texts in one row see "
            'each other. Give them to the attention, mw.nn.attention(..., segments=batch["segments"]), or '
            "take pack=False"
        )
    if SEGMENTS in of_batch and SEGMENTS not in unread:
        first = np.asarray(tree.named_leaves(training.first_rows())[SEGMENTS])[..., 0]
        if (first == 0).any():
            yield (
                f"{(first == 0).sum()} of {first.size} rows of the first batch begin with segment 0. It is "
                "padding in mw.lm, so no token of it counts in their losses. Number segments from 1"
            )


def _stacks_as_matrices(
    program: Program, inputs: Mapping[str, Value], opt_state: Any
) -> Iterator[tuple[str, list[str], str]]:
    """Yield optimizers, the stacks of vectors that each takes for matrices, by name, and what to write."""
    states = [x for x in jax.tree.leaves(opt_state, is_leaf=_takes_matrices) if _takes_matrices(x)]
    origins, scanned = dict[Value, Value](), set[Value]()
    for operation in walk(program) if states else ():
        for tie in operation.entering:
            origin = origins.get(tie.source, tie.source)
            scanned.update([origin] if tie.source_stacked else ())
            origins[tie.target] = origin
        if operation.primitive.is_same:
            operands = (origins.get(value, value) for value in operation.inputs)
            origins.update(zip(operation.outputs, operands, strict=True))
    for state in states:
        optimizer, field, remedy = _OF_MATRICES[type(state)]
        leaves = tree.named_leaves({"params": getattr(state, field)})
        matrices = [name for name, x in leaves.items() if x.size]
        stacks = [name for name in matrices if len(inputs[name].shape) == 2 and inputs[name] in scanned]
        if stacks:
            yield optimizer, stacks, remedy


def _takes_matrices(node: Any) -> bool:
    return type(node) in _OF_MATRICES


def _loss(program: Program, num_state: int, names: tuple[str, ...], minimised: str) -> list[Value]:
    """Return the total and the count of the loss, which are in one array with those of all other means."""
    means, index = program.outputs[num_state], names.index(minimised)
    return [stacked(program, stacked(program, means, row), index) for row in (0, 1)]


def _fixed(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value], frozen: Collection[str]
) -> Iterator[str]:
    """Yield the batch statistics that may change, if the step returns all of them as it got them."""
    state = [name for name in _under("model_state", inputs) if name not in frozen]
    statistics = [name for name in state if _STATISTIC.fullmatch(name)]
    if all(inputs[name] is outputs[name] for name in statistics):
        yield from statistics


def _under(part: str, names: Collection[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{part}/")]
