"""When a run evaluates and saves: by the step, or by what the run has found so far as well."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import cast

from meshwright.arguments import num_required
from meshwright.errors import UsageError, nearest
from meshwright.when import When, every

Known = Mapping[str, float]
"""Numbers by name, as they are reported: `loss`, `test/loss`."""

InformedWhen = Callable[[int, Known], bool]
"""Is it due after this step, of a run that knows these numbers?"""

Policy = int | When | InformedWhen
"""A number means every so many steps."""


@dataclass(frozen=True)
class WhenEvaluated:
    """Due at the steps at which all these evaluations were made."""

    evaluations: tuple[str, ...]

    def __call__(self, step: int, scores: Known) -> bool:
        return all(any(score.startswith(f"{name}/") for score in scores) for name in self.evaluations)

    def check(self, evaluations: Collection[str]) -> None:
        """Raise a `UsageError` if a name is none of `evaluations`: it would never be due."""
        for name in self.evaluations:
            if name not in evaluations:
                close = nearest(name, evaluations)
                raise UsageError(
                    f"when_evaluated({name!r}): there is no such evaluation."
                    f"{f' Did you mean {close!r}?' if close else ''}\n"
                    f"  There are: {', '.join(evaluations) or 'none'}."
                )


def when_evaluated(*evaluations: str) -> WhenEvaluated:
    """Return a policy for `Save.when`: save at the steps at which all these evaluations were made."""
    return WhenEvaluated(evaluations)


def is_informed(when: Policy) -> bool:
    """Return whether a policy goes by more than the step.

    Raises:
      UsageError: it asks for more than the step and what is known.
    """
    if isinstance(when, int):
        return False
    number = num_required(when, "policy")
    if number > 2:
        raise UsageError(f"a policy is a function of the step, or of two arguments; this takes {number}.")
    return number == 2


def as_when(when: Policy, known: Callable[[int], Known]) -> When:
    """Return a policy of the step alone; one of two arguments is given `known(step)` as the second."""
    if isinstance(when, int):
        return every(when)
    if not is_informed(when):
        return cast(When, when)
    return lambda step: cast(InformedWhen, when)(step, known(step))
