"""Policies of when a run evaluates and saves: functions of the step, or of the step and reported numbers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast

from meshwright.base._internal import num_required
from meshwright.errors import UsageError, did_you_mean
from meshwright.processes._internal import Every, When, every

Known = Mapping[str, float]
"""The newest reported numbers by name, such as `loss` and `test/loss`."""

InformedWhen = Callable[[int, Known], bool]
"""A function of the step and of the newest reported numbers that returns True if something is due."""

Policy = int | When | InformedWhen | None
"""A policy; a number n means every n steps, and None every 500 steps."""

_USUAL_STEPS = 500


@dataclass(frozen=True)
class WhenEvaluated:
    """A policy that is due at the steps at which all these evaluations were made."""

    evaluations: tuple[str, ...]
    """The names of the evaluations."""

    def __call__(self, step: int, scores: Known) -> bool:
        return all(any(score.startswith(f"{name}/") for score in scores) for name in self.evaluations)

    def check(self, evaluations: Collection[str]) -> None:
        """Check that the policy names only evaluations of the run; otherwise it would never be due."""
        for name in self.evaluations:
            if name not in evaluations:
                raise UsageError(
                    f"when_evaluated({name!r}): the run has no evaluation {name!r}."
                    f"{did_you_mean(name, evaluations)}\n"
                    f"  Its evaluations are: {', '.join(evaluations) or 'none'}."
                )


def when_evaluated(*evaluations: str) -> WhenEvaluated:
    """Return a policy for `Save.when`: save at the steps at which all these evaluations were made.

    Args:
      evaluations: The names of the evaluations.

    Example:
      >>> due = mw.engine.when_evaluated("test")
      >>> due(100, {"test/loss": 0.5}), due(150, {"loss": 0.4})
      (True, False)
    """
    return WhenEvaluated(evaluations)


def is_informed(when: Policy) -> bool:
    """Return whether a policy reads reported numbers, too."""
    if when is None or isinstance(when, int):
        return False
    number = num_required(when, "policy")
    if number > 2:
        raise UsageError(
            f"a policy takes the step, or the step and the reported numbers; this function takes {number} "
            "arguments."
        )
    return number == 2


def num_steps_of(when: Policy) -> int | None:
    """Return the number of steps from one time to the next; None for a policy of another kind."""
    if when is None:
        return _USUAL_STEPS
    return when if isinstance(when, int) else when.num_steps if isinstance(when, Every) else None


def as_when(when: Policy, known: Callable[[int], Known]) -> When:
    """Return a policy as a function of the step alone."""
    if (number := num_steps_of(when)) is not None:
        return every(number)
    if not is_informed(when):
        return cast(When, when)
    return lambda step: cast(InformedWhen, when)(step, known(step))
