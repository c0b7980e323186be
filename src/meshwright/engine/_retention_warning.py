"""Remarks on wishes that a run will not fulfil: what is never due, and checkpoints without a score."""

from collections.abc import Collection, Iterator

import jax

from meshwright.checkpoints._internal import Keep, metrics_of
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._policies import num_steps_of
from meshwright.engine._settings import Profile, Settings
from meshwright.errors import listed

_MOST = 200
"""The most saves that are looked at."""
_FEW = 3
"""As many more checkpoints than the policy says are no trouble."""


def never_due(profile: Profile, evaluations: Collection[EvaluationPart], last_step: int) -> Iterator[str]:
    """Yield a warning for each setting whose step is after the run's end, or whose process is not there."""
    if late := [str(step) for step in profile.steps if step > last_step]:
        yield f"profile.steps: the run ends after step {last_step}, so it does not profile {listed(late)}"
    number = jax.process_count()
    if profile.steps and profile.processes != "all" and min(profile.processes, default=number) >= number:
        yield f"profile.processes={profile.processes}: the run has {number}, so none of them is profiled"
    for one in evaluations:
        every = num_steps_of(one.when)
        if every is not None and every > last_step and not one.at_end():
            yield (
                f"evaluations.{one.name}.when={every}, at_end=False: the run ends after step {last_step}, so "
                "it never makes this evaluation"
            )


def unscored(settings: Settings, evaluations: Collection[EvaluationPart], last_step: int) -> Iterator[str]:
    """Yield a warning for each score that too many checkpoints will lack.

    Only policies that are a number of steps are judged, as others cannot be asked about later steps.
    """
    if (save := settings.save) is None:
        return
    saved_every = num_steps_of(save.when)
    for metric in metrics_of(save.keep):
        for one in evaluations:
            every = num_steps_of(one.when)
            if saved_every is None or every is None or not metric.startswith(one.prefix):
                continue
            saved = range(saved_every, last_step, saved_every)[:_MOST]
            scored = {step for step in saved if step % every == 0}
            if len(saved) > _FEW and (not scored or _surplus(save.keep, saved, scored) > _FEW):
                yield (
                    f"save.when={saved_every} and evaluations.{one.name}.when={every}: "
                    f"{len(saved) - len(scored)} of the first {len(saved)} checkpoints will have no score "
                    f"{metric!r}, by which save.keep chooses. Save what is evaluated: "
                    f"save.when=mw.engine.when_evaluated({one.name!r})"
                )


def _surplus(keep: int | Keep, saved: Collection[int], scored: Collection[int]) -> int:
    """Return how many more checkpoints are kept than if all of them had scores."""
    if isinstance(keep, int):
        return 0
    scores = dict.fromkeys(metrics_of(keep), 0.0)
    kept = keep({step: scores if step in scored else {} for step in saved})
    return len(kept) - len(keep(dict.fromkeys(saved, scores)))
