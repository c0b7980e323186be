"""Traced steps, shared between meshes for which the step is the same program.

A step does not depend on how the devices that split the batch are divided between `data` and `fsdp`: only the
shardings of the state do. So one step is traced for all meshes in which the other axes are the same, and a
search over meshes traces few.
"""

import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial, wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh

from meshwright.base._internal import PyTree
from meshwright.engine._internal import Experiment, Parts, loss_of, parts_of
from meshwright.errors import AxisError, LayoutError, UsageError
from meshwright.parallel._internal import grouped_mesh, in_mesh, plain_axes
from meshwright.program._internal import as_function
from meshwright.training._internal import Init, TrainState, as_init, key_of

_NOT_IN_STATE = ("microbatches", "pipeline_rounds", "pipeline_schedule", "remat")
"""Settings that do not change the state."""


class Traces:
    """The traced steps of an experiment and of its variants, and the rules that were inferred for it."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, tuple[Experiment, Any]] = {}
        self._rules: dict[Hashable, tuple[Experiment, tuple[Any, ...]]] = {}
        self._named: dict[Hashable, AxisError | None] = {}
        """For losses and axes that a mesh may lack: the error if the loss names the axis."""
        self._targets: dict[Hashable, tuple[Experiment, TrainState]] = {}
        self._inits: dict[Hashable, tuple[Any, Init]] = {}
        self._functions: dict[tuple[int, ...], tuple[Any, Callable[..., Any]]] = {}

    def __len__(self) -> int:
        """Return the number of traced steps."""
        return len(self._steps)

    def jaxpr(self, experiment: Experiment, parts: Parts, rows: PyTree) -> Any:
        """Return the jaxpr of the traced step; that of another mesh if it is the same program."""
        mesh = parts.layout.mesh
        alike, common = _common(experiment, mesh)
        self._check_names(experiment, parts, rows, common)
        outcome = self._traced(alike, common, rows, parts if common == mesh else None)
        if isinstance(outcome, LayoutError) and common != mesh:
            # The parameters may divide over the experiment's own mesh.
            outcome = self._traced(experiment, mesh, rows, parts)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _check_names(self, experiment: Experiment, parts: Parts, rows: PyTree, common: Mesh) -> None:
        """Check that the model names no axis that only the common mesh has.

        The first step without an axis is traced on its own mesh to find out.
        """
        mesh = parts.layout.mesh
        for axis in common.shape.keys() - mesh.shape.keys():
            key = _key(experiment.loss), axis
            if key not in self._named:
                outcome = self._traced(experiment, mesh, rows, parts)
                if isinstance(outcome, AxisError) and outcome.axis == axis:
                    self._named[key] = outcome
                # A step that fails for another reason shows nothing.
                elif not isinstance(outcome, Exception):
                    self._named[key] = None
            if (error := self._named.get(key)) is not None:
                raise error

    def _traced(self, experiment: Experiment, mesh: Mesh, rows: PyTree, parts: Parts | None) -> Any:
        """Return the jaxpr of the step on a mesh, traced once, or the error that says why there is none."""
        key = _settings(experiment, but=("mesh",)), tuple(mesh.shape.items())
        if key not in self._steps:
            try:
                parts = parts or self.parts(experiment, mesh, rows)
                traced = parts.step.trace(parts.target, parts.batch).jaxpr
            except UsageError as error:
                traced = error
            # The experiment is stored, too: while it lives, no other object has its ids.
            self._steps[key] = experiment, traced
        return self._steps[key][1]

    def parts(self, experiment: Experiment, mesh: Mesh, rows: PyTree) -> Parts:
        """Return the parts of a run on a mesh, with rules that were inferred before, if there are any."""
        key = _settings(experiment, but=("mesh", "batch_axis_names", "optimizer", *_NOT_IN_STATE))
        if experiment.rules is None and key in self._rules:
            experiment = replace(experiment, rules=self._rules[key][1])
        init = self._init(experiment, mesh)
        placed = (
            _settings(experiment, but=(*_NOT_IN_STATE, "mesh")),
            tuple(mesh.shape.items()),
            mesh.axis_types,
        )
        _, target = self._targets.get(placed, (None, None))
        parts = parts_of(experiment, mesh, rows, init=init, loss=self._loss(experiment), target=target)
        self._targets[placed] = experiment, parts.target
        if parts.layout.rules:
            self._rules[key] = experiment, parts.layout.rules
        return parts

    def _init(self, experiment: Experiment, mesh: Mesh) -> Init:
        """Return what makes parameters as the model's own, traced once for all meshes that share a step."""
        own = self._once((experiment.model,), lambda: jax.jit(partial(as_init(experiment.model))))
        # On explicit axes the types of the parameters have shardings of their own.
        if not _is_auto(mesh):
            return own
        _, common = _common(experiment, mesh)
        key = id(experiment.model), tuple(common.shape.items())
        if key not in self._inits:
            # The key is made before the mesh is entered, which would compile it anew.
            first = key_of(0)
            try:
                with in_mesh(common):
                    structs = jax.eval_shape(own, first)
            except (TypeError, ValueError, LayoutError):
                # The model may be possible on the experiment's own mesh.
                return own
            init = own if _is_unusual(structs) else jax.jit(partial(_zeros, structs))
            self._inits[key] = experiment.model, init
        return self._inits[key][1]

    def _loss(self, experiment: Experiment) -> Callable[..., Any]:
        """Return the loss that the step minimises, traced once, with what it rematerializes.

        JAX remembers the derivatives of loops that it has seen.
        """
        loss = self._once((experiment.loss,), lambda: _replayed(experiment.loss))
        if experiment.remat is None:
            return loss_of(replace(experiment, loss=loss))
        sources = experiment.loss, experiment.remat, experiment.parameter_noise
        return self._once(sources, lambda: _replayed(loss_of(replace(experiment, loss=loss))))

    def _once(self, sources: tuple[Any, ...], make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return a function that is made once, so that JAX traces it once for a mesh and shapes."""
        key = tuple(map(id, sources))
        if key not in self._functions:
            self._functions[key] = sources, make()
        return self._functions[key][1]


def _replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is traced once; its operations become part of the caller, as without that."""
    jitted = jax.jit(function)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        with suppress(TypeError):
            traced = jitted.trace(*arguments, **named)
            return as_function(traced.jaxpr, traced.out_info)(*arguments, **named)
        # The same error, or a result that is no arrays, comes from the function itself.
        return function(*arguments, **named)

    return called


def _is_unusual(structs: PyTree) -> bool:
    """Return whether there are keys, or numbers that take the dtype of the other operand."""
    return any(x.weak_type or jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in jax.tree.leaves(structs))


def _zeros(like: PyTree, _: jax.Array) -> PyTree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def _common(experiment: Experiment, mesh: Mesh) -> tuple[Experiment, Mesh]:
    """Return a mesh with `data` and `fsdp` that splits the batch over as many devices, and so for all such.

    A mesh is returned as it is if these axes are not the first, or are explicit, or do not both split the
    batch. The experiment that is returned names the axes of the new mesh.
    """
    sizes, names = dict(mesh.shape), experiment.batch_axis_names
    batch_axes = plain_axes()
    ways = math.prod([sizes.pop(axis, 1) for axis in batch_axes])
    present = [axis for axis in batch_axes if axis in mesh.shape]
    in_order = [*present, *sizes] == [*mesh.shape]
    of_both = names is None or [*names[: len(present)]] == present
    if ways % 2 or ways == 2 or not (in_order and _is_auto(mesh) and of_both):
        return experiment, mesh
    if names is not None:
        experiment = replace(experiment, batch_axis_names=(*batch_axes, *names[len(present) :]))
    sizes = dict(zip(batch_axes, (ways // 2, 2), strict=True)) | sizes
    return experiment, grouped_mesh(sizes, 1, mesh.size)


def _is_auto(mesh: Mesh) -> bool:
    return all(kind == AxisType.Auto for kind in mesh.axis_types)


def _settings(experiment: Experiment, but: tuple[str, ...]) -> Hashable:
    values = (getattr(experiment, field.name) for field in fields(experiment) if field.name not in but)
    return tuple(map(_key, values))


def _key(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
