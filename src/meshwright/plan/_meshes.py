"""The meshes that a search tries, in an order that plans few of them.

Each axis that splits a model is tried alone, and longer as long as that helps. Then the axes of the best
meshes are made longer, one at a time, until nothing better is found. Of the other devices, as few are `fsdp`
as hold the state. Last, the best meshes get more and less fsdp, and their pipelines other numbers of
microbatches, rounds and 1F1B.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax

from meshwright.errors import AxisError, UsageError
from meshwright.parallel._internal import AXES, FSDP, Use, axes_of, device_bytes, num_stages, plain_axes
from meshwright.plan._axes import Sizes, alone, divisors, longer, mesh_of, ways_of
from meshwright.plan._changes import Change, Settings, changed, least_microbatches, ranked
from meshwright.plan._site import Site
from meshwright.training._internal import TrainState

BEAM = 3
"""Number of best meshes whose axes are made longer; one more is quick and does not fit yet."""
MOST = 32
"""Number of sizes of the axes of a model after which no longer ones are tried."""
SLOW = 1.5
"""Steps that take this many times as long as the best that fits are not followed."""
STATE_SHARE = 0.4
"""The share of a device's memory that the state and the gradients may take, for the first choice of fsdp."""
PARTED = 2
"""Number of best meshes whose fsdp is varied: of the first all sizes, of the others as long as that helps."""
QUEUES = (1, 2, 4, 8, 16)
"""Numbers of microbatches for each stage of a pipeline that are tried."""
ROUNDS = (2, 4)
FIRST_QUEUES = (4, 2, 1)
"""Microbatches for each stage of a pipeline, of which the first that divide the batch are tried first."""


class Meshes:
    """The meshes of a search."""

    def __init__(self, site: Site, plan: Callable[[Settings], Change | UsageError]) -> None:
        self._site, self._plan = site, plan
        self._batch_size = site.experiment.input.batch_size
        self._best: dict[frozenset[tuple[str, int]], Change | None] = {}
        self._too_long: list[tuple[str, int]] = []
        """Axes that do not apply, and the sizes from which on they do not."""

    def run(self) -> None:
        """Plan the meshes."""
        self._best_of({})
        for chain in alone(self._site.hardware):
            self._run_chain(chain)
        if not _possible(*self._best.values()):
            self._run_pairs()
        while len(self._best) < MOST and self._has_run_longer():
            pass
        for number, sizes in enumerate(self._promising()[:PARTED]):
            self._run_parted(sizes, try_all=number == 0)
            self._run_pipelines(sizes)

    def _run_chain(self, chain: Sequence[Sizes]) -> None:
        """Plan sizes of one axis, up to one that fits and is slow, or not quicker than the one before."""
        previous = math.inf
        for sizes in chain:
            change = self._best_of(sizes)
            if change is not None and change.plan.memory.fits:
                if self._is_slow(change) or change.plan.time.seconds >= previous:
                    return
                previous = change.plan.time.seconds

    def _run_pairs(self) -> None:
        """Plan two axes together: for few rows on many devices no axis is long enough alone."""
        hardware = self._site.hardware
        of_tensor, *others = alone(hardware)
        for chain in others:
            for tensor in reversed(of_tensor):
                pairs = [{**tensor, **sizes} for sizes in chain]
                self._run_chain([x for x in pairs if hardware.num_devices % math.prod(x.values()) == 0])

    def _has_run_longer(self) -> bool:
        """Plan the promising meshes with one axis longer. Return whether any was new.

        An axis that makes a step slower that fits already is not made longer in those behind it.
        """
        num_before, slower = len(self._best), set[str]()
        for sizes in self._promising():
            base = self._best_of(sizes)
            for axis, new in longer(sizes, self._site.hardware):
                change = None if axis in slower else self._best_of(new)
                if _fits(base) and (change is None or ranked(_possible(base, change))[0] is base):
                    slower.add(axis)
        return len(self._best) > num_before

    def _promising(self) -> list[Sizes]:
        """Return the sizes of the best plans, and of the quickest that microbatches could make fit."""
        by_plan = {id(change): key for key, change in self._best.items()}
        changes = _possible(*self._best.values())
        best = [change for change in ranked(changes)[:BEAM] if not self._is_slow(change)]
        others = (x for x in changes if not _fits(x) and x not in best and self._is_hopeful(x))
        best += sorted(others, key=lambda change: change.plan.time.seconds)[:1]
        return [dict(by_plan[id(change)]) for change in best]

    def _is_slow(self, change: Change) -> bool:
        fitting = [x.plan.time.seconds for x in _possible(*self._best.values()) if _fits(x)]
        return _fits(change) and change.plan.time.seconds > SLOW * min(fitting)

    def _is_hopeful(self, change: Change) -> bool:
        """Return whether a step may fit with more microbatches, of one example for each device or more."""
        ways = math.prod(change.plan.mesh.get(axis, 1) for axis in plain_axes())
        number = change.settings.get("microbatches", self._site.experiment.microbatches)
        return least_microbatches(change.plan, number) <= self._batch_size // ways

    def _best_of(self, sizes: Sizes) -> Change | None:
        """Return the best plan with these sizes, once."""
        key = frozenset(sizes.items())
        if key not in self._best:
            self._best[key] = next(iter(ranked([*self._plans_of(sizes)])), None)
        return self._best[key]

    def _plans_of(self, sizes: Sizes) -> Iterator[Change]:
        """Yield plans with as few devices along fsdp as hold the state, and with all if that does not fit."""
        ways = ways_of(sizes, self._site.hardware)
        possible = list(_choices(self._site, sizes))
        if not possible or self._is_too_long(sizes):
            return
        placed = (
            (fsdp, _state_of(self._site, _settings_of(self._site, sizes, fsdp, {})))
            for fsdp in reversed(divisors(ways))
        )
        whole, state = next(((fsdp, state) for fsdp, state in placed if state is not None), (0, None))
        optional = [axis for axis in sizes if AXES[axis].batch is Use.CHOICE]
        if state is None or not all(_is_split(state, axis) for axis in optional):
            return
        enough = whole * _state_bytes(state) / (STATE_SHARE * self._site.hardware.chip.memory_bytes)
        few = min((fsdp for fsdp in divisors(ways) if enough <= fsdp <= whole), default=whole)
        for choice in possible:
            change = self._planned(sizes, _settings_of(self._site, sizes, few, choice))
            if not (_fits(change) or self._is_too_long(sizes)) and few < whole:
                yield from _possible(change)
                change = self._planned(sizes, _settings_of(self._site, sizes, whole, choice))
            yield from _possible(change)

    def _is_too_long(self, sizes: Sizes) -> bool:
        return any(sizes.get(axis, 1) % size == 0 for axis, size in self._too_long)

    def _planned(self, sizes: Sizes, settings: Settings) -> Change | None:
        outcome = self._plan(settings)
        if isinstance(outcome, AxisError) and outcome.axis in sizes:
            self._too_long.append((outcome.axis, sizes[outcome.axis]))
        return outcome if isinstance(outcome, Change) else None

    def _run_parted(self, sizes: Sizes, *, try_all: bool) -> None:
        """Plan with more fsdp and with less, as long as that is quicker, or with all sizes of it."""
        best = self._best_of(sizes)
        if best is None:
            return
        choice = {name: value for name, value in best.settings.items() if name != "mesh"}
        chosen = best.plan.mesh.get(FSDP, 1)
        of_ways = divisors(ways_of(sizes, self._site.hardware))
        for others in ([f for f in of_ways if f > chosen], [f for f in reversed(of_ways) if f < chosen]):
            last = best
            for fsdp in others:
                change = self._planned(sizes, _settings_of(self._site, sizes, fsdp, choice))
                is_better = change is not None and _fits(change) and ranked([last, change])[0] is change
                if not (is_better or try_all) or (fsdp < chosen and not _fits(change)):
                    break
                last = change if change is not None and is_better else last

    def _run_pipelines(self, sizes: Sizes) -> None:
        """Plan a pipeline with other numbers of microbatches, the best of them with rounds or 1F1B."""
        stages, best = num_stages(sizes), self._best_of(sizes)
        if stages == 1 or best is None:
            return
        numbers = (stages * n for n in QUEUES if _divides(self._site, sizes, stages * n))
        changes = [self._planned(sizes, {**best.settings, "microbatches": number}) for number in numbers]
        best = ranked(_possible(best, *changes))[0]
        for rounds in ROUNDS:
            self._planned(sizes, {**best.settings, "pipeline_rounds": rounds})
        self._planned(sizes, {**best.settings, "pipeline_schedule": "1f1b"})


def _possible(*changes: Change | None) -> list[Change]:
    return [change for change in changes if change is not None]


def _fits(change: Change | None) -> bool:
    return change is not None and change.plan.memory.fits


def _choices(site: Site, sizes: Sizes) -> Iterator[Settings]:
    """Yield settings besides the mesh; none if the sizes do not divide the batch."""
    stages, microbatches = num_stages(sizes), int(site.experiment.microbatches)
    numbers = [stages * n for n in FIRST_QUEUES] if stages > 1 else [microbatches]
    number = next((number for number in numbers if _divides(site, sizes, number)), None)
    if number is None:
        return
    choice: Settings = {"microbatches": number} if stages > 1 else {}
    optional = [size for axis, size in sizes.items() if AXES[axis].batch is Use.CHOICE]
    is_free = bool(optional) and site.experiment.batch_axis_names is None
    if not is_free or _divides(site, sizes, number, math.prod(optional)):
        yield choice
    if is_free:
        # `_settings_of` adds the axes of the mesh that always split the batch.
        yield {**choice, "batch_axis_names": ()}


def _divides(site: Site, sizes: Sizes, microbatches: int, ways: int = 1) -> bool:
    """Return whether the batch divides over the devices, as `mw.make_step` asks for."""
    if site.experiment.batch_axis_names is not None:
        return True
    ways *= ways_of(sizes, site.hardware)
    return site.experiment.input.batch_size % (ways * math.lcm(microbatches, num_stages(sizes))) == 0


def _settings_of(site: Site, sizes: Sizes, fsdp: int, choice: Settings) -> Settings:
    """Return all settings of a mesh."""
    mesh = mesh_of(sizes, site.hardware, fsdp)
    if "batch_axis_names" not in choice:
        return {"mesh": mesh, **choice}
    axes = [part.partition("=")[0] for part in mesh.split(",")]
    splitting = tuple(axis for axis in axes if AXES[axis].batch in (Use.PURPOSE, Use.BESIDES))
    return {"mesh": mesh, **choice, "batch_axis_names": splitting}


def _state_of(site: Site, settings: Settings) -> TrainState | None:
    """Return the state on its mesh, as structs, without a trace; None if the mesh cannot split it."""
    try:
        return replace(site, experiment=changed(site.experiment, settings)).parts.target
    except UsageError:
        return None


def _is_split(state: TrainState, axis: str) -> bool:
    """Return whether an axis splits an array of the state."""
    specs = (x.sharding.spec for x in jax.tree.leaves(state))
    return any(axis in axes_of(entry) for spec in specs for entry in spec)


def _state_bytes(state: TrainState) -> int:
    """Return the bytes of one device's part of the state, and of gradients as large as the parameters."""
    arrays = jax.tree.leaves((state, state.params))
    return sum(device_bytes(x, x.sharding) for x in arrays)
