"""The best of a search, compiled: XLA's memory judges them. The estimate only chooses which to compile."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwright.plan._changes import Change, Settings, changed, ranked
from meshwright.plan._site import Compiled, NotCompiledError, Site

FITTING = 3
"""Number of compiled steps that fit after which no more are compiled."""
TRIES = 6
"""Most steps that are compiled."""


def with_finalists(
    site: Site, found: Sequence[Change], compile_step: Callable[[Settings], Compiled]
) -> list[Change]:
    """Return the results of a search with the best compiled: first those that fit as XLA says.

    They are compiled in their order until three fit, and at most six. After those that fit come the estimates
    that fit and were not compiled, and last what does not fit.
    """
    compiled = _compiled(site, found, compile_step)
    judged = list(compiled)
    fitting = [change for change in judged if change.plan.memory.fits and change.plan.compiled]
    known = {id(change.settings) for change in judged}
    others = [change for change in found if id(change.settings) not in known]
    return ranked(fitting) + ranked([*others, *(change for change in judged if change not in fitting)])


def _compiled(
    site: Site, found: Sequence[Change], compile_step: Callable[[Settings], Compiled]
) -> Iterator[Change]:
    """Yield changes with the plans of their compiled steps, or with a note where they were not compiled."""
    left = FITTING
    for change in [each for each in found if each.plan.memory.fits][:TRIES]:
        if not left:
            return
        here = replace(site, experiment=changed(site.experiment, change.settings))
        try:
            plan = here.plan(compile_step(change.settings))
        except NotCompiledError as error:
            memory = replace(change.plan.memory, refused=error.too_large)
            notes = (*change.plan.notes, f"it could not be compiled: {error}")
            plan = replace(change.plan, memory=memory, notes=notes)
        left -= plan.compiled and plan.memory.fits
        yield replace(change, plan=plan)
