"""The settings that go with the mesh of a plan, and what is known of a mesh before the step is traced."""

import math
from collections.abc import Iterator
from dataclasses import replace

import jax

from meshwright.errors import UsageError
from meshwright.parallel._internal import AXES, Use, axes_of, device_bytes, num_stages
from meshwright.plan._axes import Sizes, mesh_of, ways_of
from meshwright.plan._changes import Settings, changed
from meshwright.plan._site import Site
from meshwright.training._internal import TrainState

FIRST_QUEUES = (4, 2, 1)
"""Microbatches for each stage of a pipeline, of which the first that divide the batch are tried first."""


def choices(site: Site, sizes: Sizes) -> Iterator[Settings]:
    """Yield settings besides the mesh; none if the sizes do not divide the batch."""
    stages, microbatches = num_stages(sizes), int(site.experiment.microbatches)
    numbers = [stages * n for n in FIRST_QUEUES] if stages > 1 else [microbatches]
    number = next((number for number in numbers if divides(site, sizes, number)), None)
    if number is None:
        return
    choice: Settings = {"microbatches": number} if stages > 1 else {}
    optional = [size for axis, size in sizes.items() if AXES[axis].batch is Use.CHOICE]
    is_free = bool(optional) and site.experiment.batch_axis_names is None
    if not is_free or divides(site, sizes, number, math.prod(optional)):
        yield choice
    if is_free:
        yield {**choice, "batch_axis_names": ()}  # those of the mesh that are no choice: see `settings_of`


def divides(site: Site, sizes: Sizes, microbatches: int, ways: int = 1) -> bool:
    """Return whether the batch divides over the devices, as `mw.make_step` asks for."""
    if site.experiment.batch_axis_names is not None:
        return True
    ways *= ways_of(sizes, site.hardware)
    return site.experiment.input.batch_size % (ways * math.lcm(microbatches, num_stages(sizes))) == 0


def settings_of(site: Site, sizes: Sizes, fsdp: int, choice: Settings) -> Settings:
    """Return all settings of a mesh."""
    mesh = mesh_of(sizes, site.hardware, fsdp)
    if "batch_axis_names" not in choice:
        return {"mesh": mesh, **choice}
    axes = [part.partition("=")[0] for part in mesh.split(",")]
    splitting = tuple(axis for axis in axes if AXES[axis].batch in (Use.PURPOSE, Use.BESIDES))
    return {"mesh": mesh, **choice, "batch_axis_names": splitting}


def state_of(site: Site, settings: Settings) -> TrainState | None:
    """Return the state on its mesh, as structs, without a trace; None if it cannot be on it."""
    try:
        return replace(site, experiment=changed(site.experiment, settings)).parts.target
    except UsageError:
        return None


def is_split(state: TrainState, axis: str) -> bool:
    """Return whether an axis splits an array of the state."""
    specs = (x.sharding.spec for x in jax.tree.leaves(state))
    return any(axis in axes_of(entry) for spec in specs for entry in spec)


def held(state: TrainState) -> int:
    """Return the bytes of one device's part of the state, and of gradients as large as the parameters."""
    arrays = jax.tree.leaves((state, state.params))
    return sum(device_bytes(x, x.sharding) for x in arrays)
