"""Changes of an experiment's settings, and the cheapest that make a step fit."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.engine._internal import Experiment
from meshwright.errors import LayoutError, UsageError
from meshwright.plan._axes import alone, mesh_of
from meshwright.plan._site import Site
from meshwright.plan._values import Plan
from meshwright.training._internal import offload_opt_state

Settings = Mapping[str, Any]
"""Values of fields of `Experiment`, by the names of the fields."""
OFFLOADED = "offloaded"
"""Key for an optimizer wrapped in `mw.training.offload_opt_state`; it is not a field of `Experiment`."""
REMATS = (None, "dots", "dots_no_batch")
"""Remat policies of a whole loss, from most memory to most time."""
LAYER_REMATS = ("layers:everything", "layers:dots", "layers:dots_no_batch", "layers:nothing")
"""Remat policies of layers, likewise."""


@dataclass(frozen=True)
class Change:
    """Changed settings, and the plan of the step with them."""

    settings: Settings
    """New values by field of `Experiment`."""
    plan: Plan
    """Plan of the step with these settings."""

    def __str__(self) -> str:
        fields = (f"{name}={_text(value)}" for name, value in self.settings.items() if name != OFFLOADED)
        optimizer = ["optimizer=mw.training.offload_opt_state(…)"] if OFFLOADED in self.settings else []
        return " ".join([*fields, *optimizer]) or "as it is"


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def cheapest_changes(site: Site) -> list[Change]:
    """Return up to three changes that make the step fit, the quickest step first.

    Single settings are tried first; pairs of settings only if no single one is enough. Everything is
    estimated from the traced step.
    """
    single = [*_single(site)]
    pairs = ({**a, **b} for a, b in itertools.combinations(single, 2) if a.keys() != b.keys())
    for settings in (single, pairs):
        fitting = [change for change in tried(site, settings) if change.plan.memory.fits]
        if fitting:
            return sorted(fitting, key=lambda change: change.plan.time.seconds)[:3]
    return []


def tried(site: Site, candidates: Iterable[Settings]) -> Iterator[Change]:
    """Yield the plan of the step for each of the candidate settings; impossible ones are skipped."""
    for settings in candidates:
        try:
            yield with_settings(site, settings)
        except (LayoutError, UsageError):
            continue


def with_settings(site: Site, settings: Settings) -> Change:
    """Return the plan of the step with some settings."""
    return Change(settings, replace(site, experiment=changed(site.experiment, settings)).plan())


def changed(experiment: Experiment, settings: Settings) -> Experiment:
    """Return the experiment with new values for some fields, and with an offloaded optimizer if asked."""
    fields = {name: value for name, value in settings.items() if name != OFFLOADED}
    # JSON has no tuples.
    if isinstance(axes := fields.get("batch_axis_names"), list):
        fields["batch_axis_names"] = tuple(axes)
    if OFFLOADED in settings:
        fields["optimizer"] = offload_opt_state(experiment.optimizer)
    return replace(experiment, **fields)


def least_microbatches(plan: Plan, microbatches: int) -> float:
    """Return the number of microbatches below which a step cannot fit."""
    memory = plan.memory
    free = memory.available - (memory.peak - memory.temporary)
    return microbatches * memory.temporary / free if free > 0 else math.inf


def _single(site: Site) -> Iterator[Settings]:
    experiment = site.experiment
    if experiment.remat in REMATS:
        yield from ({"remat": policy} for policy in REMATS[REMATS.index(experiment.remat) + 1 :])
        yield from ({"remat": policy} for policy in LAYER_REMATS[1:])
    yield from ({"microbatches": times * experiment.microbatches} for times in (2, 4, 8))
    if experiment.compute_dtype is None:
        yield {"compute_dtype": "bfloat16"}
    meshes = ({}, *next(alone(site.hardware)))
    yield from ({"mesh": mesh_of(sizes, site.hardware)} for sizes in meshes)
    # A CPU's memory is the host's: nothing is gained by offloading.
    if site.hardware.chip.target is not None:
        yield {OFFLOADED: True}


def ranked(changes: Sequence[Change]) -> list[Change]:
    """Return changes that fit, the quickest first, then the others, the smallest first."""

    def key(change: Change) -> tuple[bool, float]:
        memory = change.plan.memory
        return not memory.fits, change.plan.time.seconds if memory.fits else memory.peak

    return sorted(changes, key=key)
