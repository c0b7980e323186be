"""What a plan says of a step that did not fit: its figures, and the three cheapest changes."""

import logging
from dataclasses import replace

import jax

from meshwright.base._internal import human_bytes
from meshwright.engine._internal import Experiment, before_choice
from meshwright.plan._changes import cheapest_changes
from meshwright.plan._choice import CPU_RATES
from meshwright.plan._hardware import CPU, hardware_here
from meshwright.plan._plan import site_of
from meshwright.plan._site import Site
from meshwright.plan._words import described_changes

log = logging.getLogger("meshwright")

_LESS = 0.9
"""How much of the memory that was planned may be used, if the plan had said that it fits."""


def remedies(experiment: Experiment) -> str:
    """Return what the plan of a step says of its memory, and the three cheapest changes that need less.

    If the planned peak is within the device's memory, something else takes memory, too, or the estimate is
    too low. Then changes are those that need a tenth less.
    """
    hardware = hardware_here()
    reported = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit") or hardware.chip.memory_bytes
    hardware = replace(hardware, chip=replace(hardware.chip, memory_bytes=reported))
    rates = CPU_RATES if hardware.chip.name == CPU else None
    site = site_of(before_choice(experiment), hardware, rates=rates)
    memory = site.plan().memory
    within = min(reported, _LESS * memory.peak)
    smaller = replace(site, hardware=replace(hardware, chip=replace(hardware.chip, memory_bytes=within)))
    parts = {
        "parameters": memory.params,
        "optimizer": memory.optimizer,
        "gradients": memory.gradients,
        "batch": memory.batch,
        "activations and others": memory.temporary + memory.other_state,
    }
    told = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    head = f"Planned: {human_bytes(memory.peak)} of {human_bytes(reported)} on a device ({told})."
    return f"{head}\n{_changes(smaller)}"


def _changes(site: Site) -> str:
    """Return the cheapest changes in words, or why none was found: a loss may fit only its own batch size."""
    try:
        return described_changes(cheapest_changes(site))
    except Exception as error:  # of the user's functions, of any kind
        log.info("a change could not be planned", exc_info=True)
        return f"Changes could not be planned: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
