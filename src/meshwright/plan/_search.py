"""A search over meshes, what layers keep, microbatches and offloading, for the quickest step that fits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.base._internal import collector_paused
from meshwright.errors import AxisError, UsageError
from meshwright.parallel._internal import PIPELINE
from meshwright.plan._changes import (
    LAYER_REMATS,
    OFFLOADED,
    REMATS,
    Change,
    Settings,
    changed,
    least_microbatches,
    ranked,
    with_settings,
)
from meshwright.plan._meshes import Meshes
from meshwright.plan._site import Compiled, NotCompiledError, Site

MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of microbatches that a search tries, until one fits: more of them save memory, and never time."""
FINALISTS = 3
"""Number of best meshes for which other policies are tried, too."""
OFFLOADING = 2
"""Number of best meshes for which offloading is tried, too."""
FITTING = 3
"""Number of compiled steps that fit after which no more are compiled."""
TRIES = 6
"""Most steps that are compiled."""
OFFLOADED_REMAT = "layers:offload_dots_no_batch"
"""The policy that keeps activations in the host's memory."""


def search(site: Site) -> list[Change]:
    """Return meshes and settings: those that fit before those that do not, then by time.

    Meshes are tried with the experiment's own settings: of data, fsdp and tensor axes, and of those of the
    axes sequence, pipeline and expert that the traced step can use. The best few are also tried with other
    policies of remat, of layers if the loss has layers. If a quicker step would fit
    into more memory, the best two are tried with the optimizer and the activations in the host's memory. Each
    has as few microbatches as fit, and at most 64. If none of the meshes is possible, the experiment's own
    mesh is used instead. Everything is estimated from the traced step.
    """
    trials = Search(site)
    with collector_paused():
        _run(site, trials)
    return trials.ranked()


def _run(site: Site, trials: "Search") -> None:
    """Make all plans."""
    Meshes(site, trials.plan_or_error).run()
    if not trials.ranked():
        trials.own()
    meshes = trials.finalists()
    remats = trials.remats(meshes[0])
    for mesh in meshes[:FINALISTS]:
        for remat in remats:
            trials.fewest_microbatches({**mesh, "remat": remat})
    if trials.could_be_quicker() and site.hardware.chip.target is not None:
        for mesh in meshes[:OFFLOADING]:
            for remat in remats:
                trials.fewest_microbatches({**mesh, "remat": remat, OFFLOADED: True})
            if set(remats) & set(LAYER_REMATS):
                trials.fewest_microbatches({**mesh, "remat": OFFLOADED_REMAT})


class Search:
    """The plans of a search, each made once."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._outcomes: dict[frozenset[tuple[str, Any]], Change | UsageError] = {}

    def ranked(self) -> list[Change]:
        """Return all plans, the best first."""
        changes = {id(change): change for change in self._outcomes.values() if isinstance(change, Change)}
        return ranked([*changes.values()])

    def finalists(self) -> list[Settings]:
        """Return the best settings of each mesh, in order.

        If they do not fit, pipelines come last: more microbatches save none of their memory.
        """
        best: dict[str | None, Change] = {}
        for change in self.ranked():
            best.setdefault(change.settings.get("mesh"), change)
        fits = lambda change: change.plan.memory.fits  # noqa: E731
        ordered = sorted(best.values(), key=lambda x: not fits(x) and x.plan.pipeline is not None)
        return [change.settings for change in sorted(ordered, key=fits, reverse=True)]

    def own(self) -> None:
        """Add the plan of the experiment as it is."""
        self._outcomes[frozenset()] = Change({}, self._site.plan())

    def plan(self, settings: Settings) -> Change | None:
        """Return the plan with some settings; None if the step cannot have them."""
        outcome = self.plan_or_error(settings)
        return outcome if isinstance(outcome, Change) else None

    def plan_or_error(self, settings: Settings) -> Change | UsageError:
        """Return the plan with some settings, or why the step cannot have them."""
        settings = {name: value for name, value in settings.items() if not self._has(name, value)}
        key = frozenset(settings.items())
        if key not in self._outcomes:
            try:
                self._outcomes[key] = with_settings(self._site, settings)
            except AxisError as error:
                mesh = settings.get("mesh", "")
                # A model may name an axis that the mesh lacks. With size 1 the axis splits nothing.
                is_missing = mesh and f"{error.axis}=" not in mesh
                more = {**settings, "mesh": f"{mesh},{error.axis}=1"}
                self._outcomes[key] = self.plan_or_error(more) if is_missing else error
            except UsageError as error:
                self._outcomes[key] = error
        return self._outcomes[key]

    def _has(self, name: str, value: Any) -> bool:
        return (
            name in ("remat", "microbatches", "pipeline_rounds", "pipeline_schedule")
            and getattr(self._site.experiment, name) == value
        )

    def remats(self, mesh: Settings) -> list[str | None]:
        """Return the policies to try: of layers if there are layers, otherwise of the whole loss.

        Policies of layers that change nothing are left out, such as the one that the model has already.
        """
        own = self._site.experiment.remat
        layers = {remat: self.plan({**mesh, "remat": remat}) for remat in (own, *LAYER_REMATS)}
        if not any(layers[remat] for remat in LAYER_REMATS):
            return [*dict.fromkeys((own, *REMATS))]
        different = {_costs(change): remat for remat, change in reversed(layers.items()) if change}
        return [remat for remat in layers if remat in different.values()]

    def fewest_microbatches(self, settings: Settings) -> None:
        """Add plans with more and more microbatches, up to the first that fits.

        Numbers that are too small even if all temporary memory were divided by them are not planned. A
        pipeline has the number that is best for its time.
        """
        if PIPELINE in settings.get("mesh", self._site.experiment.mesh):
            self.plan(settings)
            return
        least = 1.0
        for microbatches in MICROBATCHES:
            if microbatches < least and microbatches != MICROBATCHES[-1]:
                continue
            change = self.plan({**settings, "microbatches": microbatches})
            # An impossible step stays so with more microbatches.
            if change is None or change.plan.memory.fits:
                return
            least = max(least, least_microbatches(change.plan, microbatches))

    def could_be_quicker(self) -> bool:
        """Return whether the quickest of all plans does not fit."""
        changes = self.ranked()
        return not min(changes, key=lambda change: change.plan.time.seconds).plan.memory.fits


def _costs(change: Change) -> tuple[str, str]:
    return f"{change.plan.time.seconds:.3g}", f"{change.plan.memory.peak:.3g}"


def with_finalists(
    site: Site, changes: Sequence[Change], compile_step: Callable[[Settings], Compiled]
) -> list[Change]:
    """Return the results of a search with the best compiled: first those that fit as XLA says.

    The estimate only chooses which to compile: in its order, until three fit, and at most six. After those
    that fit come the estimates that fit and were not compiled, and last the changes that do not fit.
    """
    compiled = _compiled(site, changes, compile_step)
    judged = list(compiled)
    fitting = [change for change in judged if change.plan.memory.fits and change.plan.compiled]
    judged_ids = {id(change.settings) for change in judged}
    others = [change for change in changes if id(change.settings) not in judged_ids]
    return ranked(fitting) + ranked([*others, *(change for change in judged if change not in fitting)])


def _compiled(
    site: Site, changes: Sequence[Change], compile_step: Callable[[Settings], Compiled]
) -> Iterator[Change]:
    """Yield changes with the plans of their compiled steps, or with a note where they were not compiled."""
    missing = FITTING
    for change in [x for x in changes if x.plan.memory.fits][:TRIES]:
        if not missing:
            return
        finalist = replace(site, experiment=changed(site.experiment, change.settings))
        try:
            plan = finalist.plan(compile_step(change.settings))
        except NotCompiledError as error:
            memory = replace(change.plan.memory, refused=error.too_large)
            notes = (*change.plan.notes, f"it could not be compiled: {error}")
            plan = replace(change.plan, memory=memory, notes=notes)
        missing -= plan.compiled and plan.memory.fits
        yield replace(change, plan=plan)
