"""The meshes that a search tries, in an order that plans few of them.

Each axis that splits a model is tried alone, and longer as long as that helps. Then the axes of the best
meshes are made longer, one at a time, until nothing better is found. Of the other devices, as few are `fsdp`
as hold the state. Last, the best meshes get more and less fsdp, and their pipelines other numbers of
microbatches, rounds and 1F1B.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from meshwright.errors import AxisError, UsageError
from meshwright.parallel._internal import AXES, FSDP, Use, num_stages, plain_axes
from meshwright.plan._axes import Sizes, alone, divisors, longer, ways_of
from meshwright.plan._changes import Change, Settings, least_microbatches, ranked
from meshwright.plan._mesh_settings import choices, divides, held, is_split, settings_of, state_of
from meshwright.plan._site import Site

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


class Meshes:
    """The meshes of a search."""

    def __init__(self, site: Site, plan: Callable[[Settings], Change | UsageError]) -> None:
        self._site, self._plan = site, plan
        self._batch_size = site.experiment.input.batch_size
        self._found: dict[frozenset[tuple[str, int]], Change | None] = {}
        self._too_long: list[tuple[str, int]] = []
        """Axes that do not apply, and the sizes from which on they do not."""

    def run(self) -> None:
        """Plan the meshes."""
        self._best_of({})
        for chain in alone(self._site.hardware):
            self._run_chain(chain)
        if not _made(*self._found.values()):
            self._run_pairs()
        while len(self._found) < MOST and self._has_run_longer():
            pass
        for number, sizes in enumerate(self._promising()[:PARTED]):
            self._run_parted(sizes, try_all=number == 0)
            self._run_pipelines(sizes)

    def _run_chain(self, chain: Sequence[Sizes]) -> None:
        """Plan sizes of one axis, up to one that fits and is slow, or not quicker than the one before."""
        before = math.inf
        for sizes in chain:
            found = self._best_of(sizes)
            if found is not None and found.plan.memory.fits:
                if self._is_slow(found) or found.plan.time.seconds >= before:
                    return
                before = found.plan.time.seconds

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
        num_before, slower = len(self._found), set[str]()
        for sizes in self._promising():
            before = self._best_of(sizes)
            for axis, new in longer(sizes, self._site.hardware):
                found = None if axis in slower else self._best_of(new)
                if _fits(before) and (found is None or ranked(_made(before, found))[0] is before):
                    slower.add(axis)
        return len(self._found) > num_before

    def _promising(self) -> list[Sizes]:
        """Return the sizes of the best plans, and of the quickest that microbatches could make fit."""
        by_plan = {id(change): key for key, change in self._found.items()}
        found = _made(*self._found.values())
        best = [change for change in ranked(found)[:BEAM] if not self._is_slow(change)]
        others = (x for x in found if not _fits(x) and x not in best and self._is_hopeful(x))
        best += sorted(others, key=lambda change: change.plan.time.seconds)[:1]
        return [dict(by_plan[id(change)]) for change in best]

    def _is_slow(self, change: Change) -> bool:
        fitting = [x.plan.time.seconds for x in _made(*self._found.values()) if _fits(x)]
        return _fits(change) and change.plan.time.seconds > SLOW * min(fitting)

    def _is_hopeful(self, change: Change) -> bool:
        """Return whether a step may fit with more microbatches, of one example for each device or more."""
        ways = math.prod(change.plan.mesh.get(axis, 1) for axis in plain_axes())
        number = change.settings.get("microbatches", self._site.experiment.microbatches)
        return least_microbatches(change.plan, number) <= self._batch_size // ways

    def _best_of(self, sizes: Sizes) -> Change | None:
        """Return the best plan with these sizes, once."""
        key = frozenset(sizes.items())
        if key not in self._found:
            self._found[key] = next(iter(ranked([*self._plans_of(sizes)])), None)
        return self._found[key]

    def _plans_of(self, sizes: Sizes) -> Iterator[Change]:
        """Yield plans with as few devices along fsdp as hold the state, and with all if that does not fit."""
        ways = ways_of(sizes, self._site.hardware)
        possible = list(choices(self._site, sizes))
        if not possible or self._is_too_long(sizes):
            return
        placed = (
            (fsdp, state_of(self._site, settings_of(self._site, sizes, fsdp, {})))
            for fsdp in reversed(divisors(ways))
        )
        whole, state = next(((fsdp, state) for fsdp, state in placed if state is not None), (0, None))
        optional = [axis for axis in sizes if AXES[axis].batch is Use.CHOICE]
        if state is None or not all(is_split(state, axis) for axis in optional):
            return
        enough = whole * held(state) / (STATE_SHARE * self._site.hardware.chip.memory_bytes)
        few = min((fsdp for fsdp in divisors(ways) if enough <= fsdp <= whole), default=whole)
        for choice in possible:
            found = self._planned(sizes, settings_of(self._site, sizes, few, choice))
            if not (_fits(found) or self._is_too_long(sizes)) and few < whole:
                yield from _made(found)
                found = self._planned(sizes, settings_of(self._site, sizes, whole, choice))
            yield from _made(found)

    def _is_too_long(self, sizes: Sizes) -> bool:
        return any(sizes.get(axis, 1) % size == 0 for axis, size in self._too_long)

    def _planned(self, sizes: Sizes, settings: Settings) -> Change | None:
        made = self._plan(settings)
        if isinstance(made, AxisError) and made.axis in sizes:
            self._too_long.append((made.axis, sizes[made.axis]))
        return made if isinstance(made, Change) else None

    def _run_parted(self, sizes: Sizes, *, try_all: bool) -> None:
        """Plan with more fsdp and with less, as long as that is quicker, or with all sizes of it."""
        best = self._best_of(sizes)
        if best is None:
            return
        choice = {name: value for name, value in best.settings.items() if name != "mesh"}
        known = best.plan.mesh.get(FSDP, 1)
        of_ways = divisors(ways_of(sizes, self._site.hardware))
        for others in ([f for f in of_ways if f > known], [f for f in reversed(of_ways) if f < known]):
            last = best
            for fsdp in others:
                made = self._planned(sizes, settings_of(self._site, sizes, fsdp, choice))
                is_better = made is not None and _fits(made) and ranked([last, made])[0] is made
                if not (is_better or try_all) or (fsdp < known and not _fits(made)):
                    break
                last = made if made is not None and is_better else last

    def _run_pipelines(self, sizes: Sizes) -> None:
        """Plan a pipeline with other numbers of microbatches, the best of them with rounds or 1F1B."""
        stages, best = num_stages(sizes), self._best_of(sizes)
        if stages == 1 or best is None:
            return
        numbers = (stages * n for n in QUEUES if divides(self._site, sizes, stages * n))
        made = [self._planned(sizes, {**best.settings, "microbatches": number}) for number in numbers]
        best = ranked(_made(best, *made))[0]
        for rounds in ROUNDS:
            self._planned(sizes, {**best.settings, "pipeline_rounds": rounds})
        self._planned(sizes, {**best.settings, "pipeline_schedule": "1f1b"})


def _made(*changes: Change | None) -> list[Change]:
    return [change for change in changes if change is not None]


def _fits(change: Change | None) -> bool:
    return change is not None and change.plan.memory.fits
