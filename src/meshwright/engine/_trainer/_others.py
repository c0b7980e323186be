"""The evaluations of a `Trainer` without examples: functions of the parameters, and samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.base._internal import is_file_name
from meshwright.engine._evaluation._function import ParamsFunction, scoring_by_function
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._policies import Policy, is_informed
from meshwright.engine._samples import NAME as SAMPLES
from meshwright.engine._samples import Sampler, check_sampler, samples_part
from meshwright.engine._trainer._recipe import Recipe
from meshwright.errors import UsageError
from meshwright.processes._internal import When, every

_TAKEN = ("eval", SAMPLES)


@dataclass(frozen=True)
class Others:
    """The arguments `evaluations` and `samples` of `fit`."""

    functions: Mapping[str, ParamsFunction]
    """The functions by name."""
    samples: Sampler | None
    """What makes samples, or None."""

    def __post_init__(self) -> None:
        check_sampler(self.samples, "fit(samples=...)")
        for name, function in self.functions.items():
            if name in _TAKEN or not is_file_name(name):
                raise UsageError(
                    f"fit(evaluations=...): an evaluation cannot be called {name!r}. Give another name of "
                    f"printable characters without '/', and not {' or '.join(map(repr, _TAKEN))}."
                )
            if not callable(function):
                raise UsageError(
                    f"fit(evaluations={{{name!r}: ...}}) takes functions of the parameters that return "
                    f"numbers by name; found {type(function).__name__}."
                )

    def parts(self, recipe: Recipe, due: When, is_new: Callable[[], bool]) -> list[EvaluationPart]:
        """Return the parts for the engine."""
        dtype, found = recipe.compute_dtype, list[EvaluationPart]()
        for name, function in self.functions.items():
            field = f"evaluations[{name!r}]"
            scoring = scoring_by_function(function, field, compute_dtype=dtype)
            found.append(EvaluationPart(name, f"{name}/", field, due, scoring, is_new))
        if self.samples is not None and self.samples.num_samples != 0:
            part = samples_part(self.samples, dtype, recipe.deployer.seed)
            found.append(replace(part, when=_while_new(part.when, is_new), at_end=is_new))
        return found


def _while_new(when: Policy, is_new: Callable[[], bool]) -> Policy:
    policy: Any = every(when) if isinstance(when, int) else when
    if is_informed(when):
        return lambda step, metrics: is_new() and policy(step, metrics)
    return lambda step: is_new() and policy(step)
