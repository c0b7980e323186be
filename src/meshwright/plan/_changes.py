"""Changes of an experiment's settings, and the cheapest that make a step fit."""

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
"""Values of fields of `Experiment`, by the names of the fields."""
OFFLOADED = "offloaded"
"""Key for an optimizer wrapped in `mw.train.offload_opt_state`; it is not a field of `Experiment`."""
REMATS = (None, "dots", "dots_no_batch")
"""Remat policies of a whole loss, from most memory to most time."""
LAYER_REMATS = ("layers:everything", "layers:dots", "layers:dots_no_batch", "layers:nothing")
"""Remat policies of layers, likewise."""
LONGEST_TENSOR = 16
"""Longest tensor axis that is tried."""


@dataclass(frozen=True)
class Change:
    """Changed settings, and the plan of the step with them."""

    settings: Settings
    """New values by field of `Experiment`."""
    plan: Plan
    """Plan of the step with these settings."""

    def __str__(self) -> str:
        written = (f"{name}={value}" for name, value in self.settings.items() if name != OFFLOADED)
        optimizer = ["optimizer=mw.train.offload_opt_state(…)"] if OFFLOADED in self.settings else []
        return " ".join([*written, *optimizer]) or "as it is"


def cheapest_changes(site: Site) -> list[Change]:
    """Return up to three changes that make the step fit, the quickest step first.

    Single settings are tried first; pairs of settings only if no single one is enough. Everything is
    estimated from the traced step.

    Args:
      site: The experiment on its hardware.
    """
    single = [*_single(site)]
    pairs = ({**a, **b} for a, b in itertools.combinations(single, 2) if a.keys() != b.keys())
    for settings in (single, pairs):
        fitting = [change for change in tried(site, settings) if change.plan.memory.fits]
        if fitting:
            return sorted(fitting, key=lambda change: change.plan.time.seconds)[:3]
    return []


def tried(site: Site, candidates: Iterable[Settings]) -> Iterator[Change]:
    """Yield the plan of the step for each of the candidate settings; impossible ones are skipped.

    Args:
      site: The experiment on its hardware.
      candidates: New values by field of `Experiment`, for each candidate.
    """
    for settings in candidates:
        try:
            yield Change(settings, replace(site, experiment=changed(site.experiment, settings)).plan())
        except (LayoutError, UsageError):
            continue


def changed(experiment: Experiment, settings: Settings) -> Experiment:
    """Return the experiment with new values for some fields, and with an offloaded optimizer if asked."""
    fields = {name: value for name, value in settings.items() if name != OFFLOADED}
    if OFFLOADED in settings:
        fields["optimizer"] = offload_opt_state(experiment.optimizer)
    return replace(experiment, **fields)


def meshes_of(hardware: Hardware) -> Iterator[str]:
    """Yield every mesh of data, fsdp and tensor axes that uses all devices, as text.

    The tensor axis stays within devices joined by fast links, and has at most `LONGEST_TENSOR` devices.
    """
    for tensor in divisors(math.gcd(hardware.group, LONGEST_TENSOR)):
        for fsdp in divisors(hardware.num_devices // tensor):
            sizes = {"data": hardware.num_devices // tensor // fsdp, "fsdp": fsdp, "tensor": tensor}
            yield ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1) or "data=1"


def divisors(number: int) -> list[int]:
    """Return all divisors of a number, in order."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _single(site: Site) -> Iterator[Settings]:
    experiment = site.experiment
    if experiment.remat in REMATS:
        yield from ({"remat": policy} for policy in REMATS[REMATS.index(experiment.remat) + 1 :])
        yield from ({"remat": policy} for policy in LAYER_REMATS[1:])
    yield from ({"microbatches": times * experiment.microbatches} for times in (2, 4, 8))
    if experiment.compute_dtype is None:
        yield {"compute_dtype": "bfloat16"}
    yield from ({"mesh": mesh} for mesh in meshes_of(site.hardware) if "data" not in mesh)
    if site.hardware.chip.target is not None:  # a CPU's memory is the host's
        yield {OFFLOADED: True}


def ranked(found: Sequence[Change]) -> list[Change]:
    """Return changes that fit, the quickest first, then the others, the smallest first.

    Args:
      found: The changes to sort.
    """

    def key(change: Change) -> tuple[bool, float]:
        memory = change.plan.memory
        return not memory.fits, change.plan.time.seconds if memory.fits else memory.peak

    return sorted(found, key=key)
