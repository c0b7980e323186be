"""The choice of `remat="auto"` and `microbatches="auto"`: the best of a search whose compiled step fits."""

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

# Assumed speeds: measured ones would differ between processes, and so would their choices.
CPU_RATES = Rates({"float32": 1e11}, memory=1e10, link=1e10, network=1e10, source="assumed")
_MOST_COMPILED = 12


def choose(
    experiment: Experiment,
    names: Sequence[str],
    make_parts: Callable[[Experiment], Parts],
    rows: PyTree,
    previous: Mapping[str, Any],
) -> tuple[Experiment, Parts, str]:
    """Return the experiment with the settings of the quickest step that fits, its parts, and why in words.

    The estimate ranks the choices. They are compiled in this order until one fits into the devices' memory,
    as XLA says. Nothing runs. Collective.
    """
    first = make_parts(experiment)
    hardware = _run_hardware(first)
    available = hardware.chip.memory_bytes
    smallest: tuple[float, str] | None = None
    ordered = _in_order(experiment, names, hardware, rows, previous)
    for number, (settings, why) in enumerate(ordered, start=1):
        candidate = replace(experiment, **settings)
        parts = make_parts(candidate) if settings else first
        peak = processes.agree(_peak(parts))
        if parts.step.meeting and "microbatches" in names:
            raise UsageError(
                "microbatches='auto': the whole batch does not fit, and rows of the batch meet in the loss, "
                f"in {parts.step.meeting}, so pieces of it would have another loss.\n"
                f"  Give microbatches={candidate.microbatches} to train with that loss, "
                "or take a smaller batch."
            )
        if peak <= available:
            how = f"{human_bytes(peak)} of {human_bytes(available)} as compiled"
            return candidate, parts, f"{how}; {why}"
        tried = ", ".join(f"{name}={getattr(candidate, name)!r}" for name in names)
        smallest = min(smallest or (peak, tried), (peak, tried))
        if number == _MOST_COMPILED:
            break
    assert smallest is not None
    takes = "more" if smallest[0] == float("inf") else human_bytes(smallest[0])
    auto = " and ".join(f"{name}='auto'" for name in names)
    raise UsageError(
        f"{auto}: no choice fits into the {human_bytes(available)} of a device. The smallest that was "
        f"compiled, {smallest[1]}, takes {takes}.\n"
        f"  Use more devices, {SPLITTING_STATE}, or a smaller batch or model: "
        "`meshwright plan MODULE:FUNCTION --on HARDWARE --search` tries them."
    )


def best_estimate(site: Site, names: Sequence[str]) -> Experiment:
    """Return the experiment with the settings that are estimated to be the best, without compiling."""
    trials = _searched(site, names)
    return replace(site.experiment, **trials.ranked()[0].settings)


def _searched(site: Site, names: Sequence[str]) -> Search:
    trials = Search(site)
    trials.own()
    remats = trials.remats({}) if "remat" in names else [site.experiment.remat]
    for remat in remats:
        if "microbatches" in names:
            trials.fewest_microbatches({"remat": remat})
        else:
            trials.plan({"remat": remat})
    return trials


def _in_order(
    experiment: Experiment,
    names: Sequence[str],
    hardware: Hardware,
    rows: PyTree,
    previous: Mapping[str, Any],
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield settings and their source, the best first. The caller found that all earlier ones do not fit."""
    if _is_possible(experiment, previous):
        yield previous, "as in the attempt before"
    rates = CPU_RATES if hardware.chip.name == CPU else None
    trials = _searched(Site(experiment, hardware, rows, rates, bandwidth=1e9), names)
    why = f"of {len(trials.ranked())} plans"
    yielded: list[Mapping[str, Any]] = []
    while True:
        remaining = [change for change in trials.ranked() if change.settings not in yielded]
        fitting = [change for change in remaining if change.plan.memory.fits]
        if not fitting:
            break
        yielded.append(fitting[0].settings)
        yield fitting[0].settings, why
        # XLA refused these settings, so the estimate was too low: more microbatches are the next choice.
        if "microbatches" in names:
            _add_more_microbatches(trials, fitting[0])
    # The estimate may be too high for settings that do not fit by it.
    for change in remaining[:2]:
        yield change.settings, why


def _is_possible(experiment: Experiment, settings: Mapping[str, Any]) -> bool:
    try:
        replace(experiment, **settings)
    except UsageError:
        return False
    return bool(settings)


def _add_more_microbatches(trials: Search, change: Change) -> None:
    current = change.settings.get("microbatches", 1)
    more = next((number for number in MICROBATCHES if number > current), None)
    if more is not None:
        trials.plan({**change.settings, "microbatches": more})


def _run_hardware(parts: Parts) -> Hardware:
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
