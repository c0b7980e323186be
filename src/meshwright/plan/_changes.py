"""What to change in an experiment: so that its step fits, or so that it is quickest, over all meshes."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import LayoutError, UsageError
from meshwright.experiment import Experiment
from meshwright.plan._hardware import Hardware
from meshwright.plan._site import Site
from meshwright.plan._values import Plan
from meshwright.train import offload_opt_state

Settings = Mapping[str, Any]
OFFLOADED = "offloaded"
"""Not a setting: the optimizer wrapped in `mw.train.offload_opt_state`."""
REMATS = (None, "dots", "dots_no_batch")
"""From what takes most memory to what takes most time."""
LONGEST_TENSOR = 16
FINALISTS = 4
"""Meshes of which the other settings are tried, too."""


@dataclass(frozen=True)
class Change:
    """Settings to change, and what the step then takes."""

    settings: Settings
    plan: Plan

    def __str__(self) -> str:
        written = (f"{name}={value}" for name, value in self.settings.items() if name != OFFLOADED)
        optimizer = ["optimizer=mw.train.offload_opt_state(…)"] if OFFLOADED in self.settings else []
        return " ".join([*written, *optimizer]) or "as it is"


def cheapest_changes(site: Site) -> list[Change]:
    """Return the three changes after which the step fits and is quickest, estimated from the traced step.

    One setting is changed; two where no one is enough.
    """
    single = [*_single(site)]
    pairs = ({**a, **b} for a, b in itertools.combinations(single, 2) if a.keys() != b.keys())
    for settings in (single, pairs):
        fitting = [change for change in tried(site, settings) if change.plan.memory.fits]
        if fitting:
            return sorted(fitting, key=lambda change: change.plan.time.seconds)[:3]
    return []


def tried(site: Site, candidates: Iterable[Settings]) -> Iterator[Change]:
    """Yield what becomes of the step with each of some settings, leaving out those that cannot be."""
    for settings in candidates:
        try:
            yield Change(settings, replace(site, experiment=changed(site.experiment, settings)).plan())
        except (LayoutError, UsageError):
            continue


def changed(experiment: Experiment, settings: Settings) -> Experiment:
    """Return the experiment with `settings`."""
    fields = {name: value for name, value in settings.items() if name != OFFLOADED}
    if OFFLOADED in settings:
        fields["optimizer"] = offload_opt_state(experiment.optimizer)
    return replace(experiment, **fields)


def meshes_of(hardware: Hardware) -> Iterator[str]:
    """Yield every mesh of data, fsdp and tensor axes that the devices make, as text.

    The tensor axis stays within devices with fast links among them, and is not longer than `LONGEST_TENSOR`.
    """
    for tensor in divisors(math.gcd(hardware.group, LONGEST_TENSOR)):
        for fsdp in divisors(hardware.num_devices // tensor):
            sizes = {"data": hardware.num_devices // tensor // fsdp, "fsdp": fsdp, "tensor": tensor}
            yield ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"


def divisors(number: int) -> list[int]:
    """Return all numbers that divide it."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _single(site: Site) -> Iterator[Settings]:
    experiment = site.experiment
    if experiment.remat in REMATS:
        yield from ({"remat": policy} for policy in REMATS[REMATS.index(experiment.remat) + 1 :])
    yield from ({"microbatches": times * experiment.microbatches} for times in (2, 4, 8))
    if experiment.compute_dtype is None:
        yield {"compute_dtype": "bfloat16"}
    yield from ({"mesh": mesh} for mesh in meshes_of(site.hardware) if "data" not in mesh)
    yield {OFFLOADED: True}


def search(site: Site) -> list[Change]:
    """Return meshes and settings, the best first: what fits before what does not, then by time.

    Tried are all meshes of data, fsdp and tensor axes with the experiment's own settings, and of the best few
    also other choices of what is kept for the gradient, and other numbers of microbatches. Where none of the
    meshes can be, the experiment's own stands for them. All is estimated from the traced step.

    Raises:
      LayoutError: that cannot be, either. It says why.
    """
    meshes = ranked([*tried(site, ({"mesh": mesh} for mesh in meshes_of(site.hardware)))])
    meshes = meshes or [Change({}, site.plan())]
    own = site.experiment.remat
    others = [
        {**found.settings, "remat": remat, "microbatches": microbatches}
        for found in meshes[:FINALISTS]
        for remat in (REMATS if own in REMATS else (own,))
        for microbatches in sorted({1, 2, 4, site.experiment.microbatches})
        if (remat, microbatches) != (own, site.experiment.microbatches)
    ]
    return ranked([*meshes, *tried(site, others)])


def ranked(found: Sequence[Change]) -> list[Change]:
    """Return what fits, the quickest first, and then what does not, the smallest first."""

    def key(change: Change) -> tuple[bool, float]:
        memory = change.plan.memory
        return not memory.fits, change.plan.time.seconds if memory.fits else memory.peak

    return sorted(found, key=key)
