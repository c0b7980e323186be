"""The memory, network traffic and time of an experiment's step on hardware that you do not have."""

import logging
import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import jax

from meshwright.base._internal import human_bytes
from meshwright.engine._internal import Experiment, automatic, before_choice, errors_naming, some_rows
from meshwright.errors import UsageError
from meshwright.parallel._internal import apply_mesh_rules
from meshwright.plan._changes import cheapest_changes
from meshwright.plan._choice import CPU_RATES, best_estimate
from meshwright.plan._hardware import CPU, Hardware, hardware_here, hardware_named
from meshwright.plan._roofline import Rates
from meshwright.plan._site import Compiled, NotCompiledError, Site
from meshwright.plan._topology import missing_compiler
from meshwright.plan._values import Plan
from meshwright.plan._words import described_changes

log = logging.getLogger("meshwright")

HOST_BANDWIDTH = 1e9
"""Bytes per second that one host is assumed to write of a checkpoint."""
_LESS = 0.9
"""Share of the planned memory that a remedy may use, if the plan had said that the step fits."""


def plan_step(
    experiment: Experiment,
    on: str | Hardware,
    *,
    compiled: bool = True,
    bandwidth: float = HOST_BANDWIDTH,
    rates: Rates | None = None,
) -> Plan:
    """Return the memory, network traffic and time that the experiment's training step takes on some hardware.

    The experiment's mesh rules apply as they would on that hardware. No array of the state is allocated, and
    nothing runs on the hardware.

    Unproven: never run beside a step on the GPUs and TPUs that it plans for.

    Args:
      experiment: The experiment to plan.
      on: The hardware: `h100:64x8` is hosts × GPUs per host, `v5e:16x16` is the topology of a TPU slice, and
        `cpu:8` is eight CPU devices of this machine.
      compiled: Compile the step with the compiler of that hardware, if its plugin is installed. Otherwise
        memory and collectives are estimated from the traced step.
      bandwidth: Bytes per second that one host writes of a checkpoint.
      rates: Speeds of one device. By default they come from its data sheet; those of CPUs are measured.

    Raises:
      UsageError: The hardware is unknown, or the experiment has an error that would also stop a run at its
        start.
      LayoutError: The experiment does not fit the mesh.

    Example:
      >>> experiment = mw.Experiment(
      ...     workdir="runs/line",
      ...     model=lambda key: {"w": jax.random.normal(key, (256, 64))},
      ...     loss=lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean(),
      ...     optimizer=optax.adam(1e-3),
      ...     input=mw.Input({"x": np.ones((64, 256), np.float32)}, batch_size=32),
      ...     max_steps=100,
      ... )
      >>> planned = mw.plan.plan_step(experiment, "h100:8", compiled=False)
      >>> planned.num_devices, planned.num_params, planned.memory.fits
      (8, 16384, True)
    """
    site = site_of(experiment, on, bandwidth=bandwidth, rates=rates)
    return planned(site, site.compile if compiled else None)


def planned(site: Site, compile_step: Callable[[], Compiled] | None) -> Plan:
    """Return the plan of a site, with the time and memory that planning took.

    If there is no `compile_step`, or the compiler is missing or refuses the step, the plan is an estimate
    from the traced step. In the last two cases a note says why.
    """
    started = time.perf_counter()
    plan, note = _compiled_or_traced(site, compile_step)
    return replace(
        plan,
        notes=(*plan.notes, *note),
        planning_seconds=time.perf_counter() - started,
        planning_bytes=_peak_bytes(),
    )


def _compiled_or_traced(site: Site, compile_step: Callable[[], Compiled] | None) -> tuple[Plan, list[str]]:
    # The estimate raises errors of the experiment before a compiler starts.
    estimate = site.plan()
    if compile_step is None:
        return estimate, []
    if missing := missing_compiler(site.hardware):
        return estimate, [_estimated(f"install {missing} to compile it for this hardware")]
    try:
        return site.plan(compile_step()), []
    except NotCompiledError as error:
        memory = replace(estimate.memory, refused=error.too_large)
        return replace(estimate, memory=memory), [_estimated(f"it could not be compiled: {error}")]


def site_of(
    experiment: Experiment,
    on: str | Hardware,
    *,
    bandwidth: float = HOST_BANDWIDTH,
    rates: Rates | None = None,
) -> Site:
    """Return the experiment on some hardware, changed as its mesh rules say for that hardware."""
    if not 0 < bandwidth < math.inf:
        raise UsageError(
            f"bandwidth={bandwidth:g} must be positive and finite: it is the bytes per second that a host "
            "writes of a checkpoint, such as 1e9, which is --bandwidth 1 on the command line."
        )
    hardware = hardware_named(on) if isinstance(on, str) else on
    with errors_naming("mesh_rules"):
        experiment = apply_mesh_rules(experiment, experiment.mesh_rules, str(hardware))
    names, rows = automatic(experiment), some_rows(experiment)
    site = Site(before_choice(experiment), hardware, rows, rates, bandwidth)
    return replace(site, experiment=best_estimate(site, names)) if names else site


def _estimated(why: str) -> str:
    return f"estimated from the traced step: {why}"


def _peak_bytes() -> int:
    """Return the most memory in bytes that this process, or any finished child process, ever used."""
    unit = 1 if sys.platform == "darwin" else 1024
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(used) * unit


def remedies(experiment: Experiment) -> str:
    """Return the planned memory of a step that did not fit, and the three cheapest changes that need less.

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
    uses = ", ".join(f"{name} {human_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)
    head = f"Planned: {human_bytes(memory.peak)} of {human_bytes(reported)} on a device ({uses})."
    return f"{head}\n{_changes(smaller)}"


def _changes(site: Site) -> str:
    """Return the cheapest changes in words, or why none was found: a loss may fit only its own batch size."""
    try:
        return described_changes(cheapest_changes(site))
    # The user's functions may raise errors of any kind.
    except Exception as error:
        log.info("a change could not be planned", exc_info=True)
        return f"Changes could not be planned: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
