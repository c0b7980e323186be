"""Checks made before the first step, so that a long run does not fail late on something small.

Each check says in a few words what it found, or raises. The cheap ones come first, and nothing
compiles before all that can be seen without compiling has been.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from meshwright import tree
from meshwright.checkpoint import Checkpoints, metrics_of
from meshwright.engine._evaluations import EvaluationPart, seconds_of
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.errors import UsageError, listed, nearest
from meshwright.evaluation import Scores
from meshwright.sharding import device_bytes
from meshwright.shown import human_bytes
from meshwright.train import TrainState, num_params
from meshwright.tree import PyTree
from meshwright.when import Tick

_MOST_EVALUATIONS = 2


@dataclass(frozen=True)
class CheckResult:
    """The text of a check's result, for people."""

    text: str
    is_warning: bool = False
    is_detail: bool = False
    """True if it is shown only with `verbose`."""

    def __str__(self) -> str:
        return f"  {'!' if self.is_warning else '✓'} {self.text}"


def check_parts(settings: Settings, training: Training) -> Iterator[CheckResult]:
    """Yield what is found without a state; last, the step is compiled.

    Raises:
      UsageError, InputError: as the parts do.
    """
    layout, target, step = training.layout, training.target, training.step
    num_arrays, num_all = len(jax.tree.leaves(target.params)), num_params(target.params)
    arrays = "1 array" if num_arrays == 1 else f"{num_arrays} arrays"
    yield CheckResult(f"{arrays} of {num_all:,} parameters fit{'s' if num_arrays == 1 else ''} the mesh")
    for whole in layout.left_whole({"params": target.params}):
        yield CheckResult(whole, is_warning=True)
    yield CheckResult(f"one batch read: {_shapes(training.batch)}")
    for remark in training.remarks:
        yield CheckResult(remark, is_warning=True)
    yield from _evaluations_fit(training)
    if all(one.names() is not None for one in training.evaluations):
        _check_names(settings, training.evaluations)
    before = step.compile_seconds
    programs = [step.compile(target, batch) for batch in (*training.other_batches, training.batch)]
    shapes = f" for {len(programs)} shapes" if training.other_batches else ""
    seconds, memory = step.compile_seconds - before, _memory(programs, target)
    yield CheckResult(f"step compiled{shapes} in {seconds:.1f} s; {memory} per device")


def _evaluations_fit(training: Training) -> Iterator[CheckResult]:
    """Yield a line for each evaluation; of more than a few one for all, and the others as details."""
    found = []
    for one in training.evaluations:
        if one.scoring.check(training.target):
            number = one.scoring.num_examples
            found.append(
                f"evaluation {one.name!r} fits: {'any number of' if number is None else number} examples"
            )
    if len(found) > _MOST_EVALUATIONS:
        yield CheckResult(f"{len(found)} evaluations fit: {listed(one.name for one in training.evaluations)}")
    yield from (CheckResult(text, is_detail=len(found) > _MOST_EVALUATIONS) for text in found)


def try_first_state(
    settings: Settings, training: Training, state: TrainState, checkpoints: Checkpoints | None
) -> Iterator[CheckResult]:
    """Yield what is found with the first state: of a few examples, and of a checkpoint.

    A run that goes on from a checkpoint has shown that it can save. Collective.

    Raises:
      UsageError, InputError: as the parts do.
    """
    scores: Scores = {}
    unknown = [one for one in training.evaluations if one.names() is None]
    for one in unknown:
        scores |= one.first(state)
    if unknown:
        _check_names(settings, training.evaluations)
    if scores:
        found = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        yield CheckResult(f"evaluation of the first examples: {found}")
    saving = settings.saving
    if checkpoints is not None and saving is not None and saving.is_tried and checkpoints.resumed is None:
        always: Callable[[int], bool] = lambda step: True  # noqa: E731
        checkpoints.saver(always)(Tick(int(state.step)), state, training.data, {})
        checkpoints.wait()
        yield CheckResult(f"state saved in {checkpoints.directory}")


def _check_names(settings: Settings, evaluations: Sequence[EvaluationPart]) -> None:
    """Check that no score has the name of a time, and that policies go by scores that there are."""
    scores = [name for one in evaluations for name in one.names() or ()]
    for one in evaluations:
        if seconds_of(one.name) in scores:
            raise UsageError(
                f"{one.field} gives a score called 'seconds', as reports call the time it takes.\n"
                "  Give it another name."
            )
    policies: list[tuple[str, Any]] = [("stop.early", settings.stop.early)]
    if settings.saving is not None:
        policies.append((settings.saving.keep_field, settings.saving.keep))
    for field, policy in policies:
        for metric in metrics_of(policy):
            if metric not in scores:
                close = nearest(metric, scores)
                raise UsageError(
                    f"{field} goes by {metric!r}, which no evaluation gives."
                    f"{f' Did you mean {close!r}?' if close else ''}\n"
                    f"  There are: {', '.join(scores) or 'none; give examples to evaluate on'}."
                )


def _shapes(batch: PyTree) -> str:
    return ", ".join(
        f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(batch).items()
    )


def _memory(programs: Sequence[jax.stages.Compiled], target: TrainState) -> str:
    """Return what a device holds between steps, and in the one that takes most."""
    state = sum(device_bytes(x, x.sharding) for x in jax.tree.leaves(target))
    analyses = [analysis for program in programs if (analysis := program.memory_analysis())]
    work = max((analysis.temp_size_in_bytes for analysis in analyses), default=None)
    said = "" if work is None else f" + {human_bytes(work)} at work"
    return f"state {human_bytes(state)}{said}"
