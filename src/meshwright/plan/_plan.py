"""`plan`: what an experiment's step takes of hardware that is not there, and what else it could take."""

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from meshwright.engine import naming
from meshwright.errors import UsageError
from meshwright.experiment import Experiment, some_rows
from meshwright.plan._hardware import Hardware, hardware_named
from meshwright.plan._roofline import Rates
from meshwright.plan._site import Compiled, NotCompiledError, Site
from meshwright.plan._topology import missing_compiler
from meshwright.plan._values import Plan
from meshwright.sharding import apply_mesh_rules

HOST_BANDWIDTH = 1e9


def plan(
    experiment: Experiment,
    on: str | Hardware,
    *,
    compiled: bool = True,
    bandwidth: float = HOST_BANDWIDTH,
    rates: Rates | None = None,
) -> Plan:
    """Return what the experiment's step takes of each device of hardware that need not be there.

    Mesh rules apply as they would there. Nothing of the state is in memory, and nothing is run there.

    Args:
      on: `h100:64x8`, hosts and GPUs of each; `v5e:16x16`, the topology of a TPU slice; `cpu:8`.
      compiled: compile the step with the hardware's own compiler, where its plugin is installed. Otherwise
        memory and collectives are estimated from the traced step.
      bandwidth: bytes a second that a host writes of a checkpoint.
      rates: what a device gets done in a second; if left out from its data sheet, and measured of CPUs.

    Raises:
      UsageError: nothing is known of the hardware, or the experiment cannot be, as when it starts.
      LayoutError: it does not fit the mesh.
    """
    site = site_of(experiment, on, bandwidth=bandwidth, rates=rates)
    return planned(site, site.compile if compiled else None)


def planned(site: Site, compile_step: Callable[[], Compiled] | None) -> Plan:
    """Return the plan of what `compile_step` gives; of the traced step where there is none, or no compiler.

    Where that raises a `NotCompiledError`, too, and then the plan notes why.
    """
    started = time.perf_counter()
    made, note = _compiled_or_traced(site, compile_step)
    return replace(
        made,
        notes=(*made.notes, *note),
        planning_seconds=time.perf_counter() - started,
        planning_bytes=_peak_bytes(),
    )


def _compiled_or_traced(site: Site, compile_step: Callable[[], Compiled] | None) -> tuple[Plan, list[str]]:
    estimate = site.plan()  # raises what is wrong with the experiment before a compiler starts
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
    """Return the experiment on some hardware, as its mesh rules change it there. See `plan`."""
    if not 0 < bandwidth < math.inf:
        raise UsageError(
            f"bandwidth={bandwidth:g} is none: give the bytes of a checkpoint that a host writes a second, "
            "as 1e9, which is --bandwidth 1."
        )
    hardware = hardware_named(on) if isinstance(on, str) else on
    with naming("mesh_rules"):
        experiment = apply_mesh_rules(experiment, experiment.mesh_rules, str(hardware))
    return Site(experiment, hardware, some_rows(experiment), rates, bandwidth)


def _estimated(why: str) -> str:
    return f"estimated from the traced step: {why}"


def _peak_bytes() -> int:
    """Return the most memory that this process, or one that it waited for, ever held."""
    unit = 1 if sys.platform == "darwin" else 1024
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(used) * unit
