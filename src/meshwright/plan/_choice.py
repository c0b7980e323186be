"""The choice of `remat="auto"` and `microbatches="auto"`: what a search finds and XLA says that it fits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from meshwright.base._internal import PyTree, human_bytes
from meshwright.engine._internal import Experiment, Parts, compile_parts
from meshwright.errors import UsageError
from meshwright.parallel._internal import SPLITTING_STATE
from meshwright.plan._changes import Change
from meshwright.plan._hardware import CPU, Hardware, hardware_here
from meshwright.plan._roofline import Rates
from meshwright.plan._search import MICROBATCHES, Search
from meshwright.plan._site import Site
from meshwright.processes import _internal as processes

CPU_RATES = Rates({"float32": 1e11}, memory=1e10, link=1e10, network=1e10, source="assumed")
"""Speeds that rank choices: measured ones would differ between processes, and so would their choices."""
_TRIES = 12
"""Most steps that are compiled."""


def choose(
    experiment: Experiment,
    names: Sequence[str],
    make_parts: Callable[[Experiment], Parts],
    rows: PyTree,
    known: Mapping[str, Any],
) -> tuple[Experiment, Parts, str]:
    """Return the experiment with the settings of the quickest step that fits, its parts, and why in words.

    The estimate ranks the choices. They are compiled in this order until one fits into the devices' memory,
    as XLA says. Nothing runs. Collective.
    """
    first = make_parts(experiment)
    hardware = _here(first)
    available = hardware.chip.memory_bytes
    smallest: tuple[float, str] | None = None
    ordered = _in_order(experiment, names, hardware, rows, known)
    for number, (settings, why) in enumerate(ordered, start=1):
        made = replace(experiment, **settings)
        parts = make_parts(made) if settings else first
        peak = processes.agree(_peak(parts))
        if parts.step.meeting and "microbatches" in names:
            raise UsageError(
                "microbatches='auto': the whole batch does not fit, and rows of the batch meet in the loss, "
                f"in {parts.step.meeting}, so pieces of it would have another loss.\n"
                f"  Give microbatches={made.microbatches} to train with that loss, or take a smaller batch."
            )
        if peak <= available:
            how = f"{human_bytes(peak)} of {human_bytes(available)} as compiled"
            return made, parts, f"{how}; {why}"
        tried = ", ".join(f"{name}={getattr(made, name)!r}" for name in names)
        smallest = min(smallest or (peak, tried), (peak, tried))
        if number == _TRIES:
            break
    assert smallest is not None
    takes = "more" if smallest[0] == float("inf") else human_bytes(smallest[0])
    asked = " and ".join(f"{name}='auto'" for name in names)
    raise UsageError(
        f"{asked}: no choice fits into the {human_bytes(available)} of a device. The smallest that was "
        f"compiled, {smallest[1]}, takes {takes}.\n"
        f"  Use more devices, {SPLITTING_STATE}, or a smaller batch or model: "
        "`meshwright plan MODULE:FUNCTION --on HARDWARE --search` tries them."
    )


def best_estimate(site: Site, names: Sequence[str]) -> Experiment:
    """Return the experiment with the settings that are estimated to be the best, without compiling."""
    found = _searched(site, names)
    return replace(site.experiment, **found.ranked()[0].settings)


def _searched(site: Site, names: Sequence[str]) -> Search:
    found = Search(site)
    found.own()
    remats = found.remats({}) if "remat" in names else [site.experiment.remat]
    for remat in remats:
        if "microbatches" in names:
            found.fewest_microbatches({"remat": remat})
        else:
            found.plan({"remat": remat})
    return found


def _in_order(
    experiment: Experiment,
    names: Sequence[str],
    hardware: Hardware,
    rows: PyTree,
    known: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield settings, the best first, with where they come from. What was yielded before did not fit."""
    if _is_possible(experiment, known):
        yield known, "as in the attempt before"
    rates = CPU_RATES if hardware.chip.name == CPU else None
    found = _searched(Site(experiment, hardware, rows, rates, bandwidth=1e9), names)
    why = f"of {len(found.ranked())} plans"
    yielded: list[Mapping[str, Any]] = []
    while True:
        left = [change for change in found.ranked() if change.settings not in yielded]
        fitting = [change for change in left if change.plan.memory.fits]
        if not fitting:
            break
        yielded.append(fitting[0].settings)
        yield fitting[0].settings, why
        if "microbatches" in names:  # the estimate was too low: more of them are the next choice
            _add_more_microbatches(found, fitting[0])
    for change in left[:2]:  # the estimate may be too high
        yield change.settings, why


def _is_possible(experiment: Experiment, known: Mapping[str, Any]) -> bool:
    try:
        replace(experiment, **known)
    except UsageError:
        return False
    return bool(known)


def _add_more_microbatches(found: Search, change: Change) -> None:
    before = change.settings.get("microbatches", 1)
    more = next((number for number in MICROBATCHES if number > before), None)
    if more is not None:
        found.plan({**change.settings, "microbatches": more})


def _here(parts: Parts) -> Hardware:
    """Return the hardware of a run, with the memory that its devices report, the same on all processes."""
    hardware = hardware_here(list(parts.layout.mesh.devices.flat))
    reported = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    available = processes.agree(reported or hardware.chip.memory_bytes)
    return replace(hardware, chip=replace(hardware.chip, memory_bytes=available))


def _peak(parts: Parts) -> float:
    """Return the most bytes of a device that any of the run's steps takes; infinity if XLA refuses one."""
    try:
        batches = (*parts.other_batches, parts.batch)
        return max(compile_parts(replace(parts, batch=batch)).peak_bytes for batch in batches)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return float("inf")
