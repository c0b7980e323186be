"""Checks before the first step, so that a long run does not fail late because of a small mistake.

Each check yields its result as a short text, or raises an error. Cheap checks come first; checks that need to
compile come last.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from meshwright.base._internal import PyTree, human_bytes, tree
from meshwright.checkpoints._internal import Checkpoints, metrics_of
from meshwright.engine._evaluation._means import Scores
from meshwright.engine._evaluations import EvaluationPart, seconds_of
from meshwright.engine._retention_warning import never_due, unscored
from meshwright.engine._settings import Settings
from meshwright.engine._training import Training
from meshwright.engine._untrained_warning import unused
from meshwright.errors import UsageError, did_you_mean, listed
from meshwright.parallel._internal import device_bytes, state_axes
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick
from meshwright.program._internal import check_lookups
from meshwright.training._internal import TrainState, num_params

_MOST_EVALUATIONS = 2  # with a line of their own on the screen


@dataclass(frozen=True)
class CheckResult:
    """The result of a check, as a text for the user."""

    text: str
    is_warning: bool = False
    """True if the user should look at it; the run continues."""
    is_detail: bool = False
    """True to show it on the screen only if the run is verbose."""

    def __str__(self) -> str:
        return f"  {'!' if self.is_warning else '✓'} {self.text}"


def check_parts(settings: Settings, training: Training) -> Iterator[CheckResult]:
    """Check the parts without a state, then compile the step, and yield the results."""
    layout, target, step = training.layout, training.target, training.step
    num_arrays, num_all = len(jax.tree.leaves(target.params)), num_params(target.params)
    arrays = "1 array" if num_arrays == 1 else f"{num_arrays} arrays"
    whole = ""
    if state_axes(layout.mesh) and all(
        x.sharding.is_fully_replicated for x in jax.tree.leaves(target.params)
    ):
        whole = ", none is split: rules=[mw.parallel.fsdp(min_size=16)] splits those below 65,536 elements"
    yield CheckResult(
        f"{arrays} of {num_all:,} parameters fit{'s' if num_arrays == 1 else ''} the mesh{whole}"
    )
    for whole in layout.left_whole({"params": target.params}):
        yield CheckResult(whole, is_warning=True)
    yield CheckResult(f"one batch read: {_shapes(training.batch)}")
    yield from map(CheckResult, training.told)
    for remark in training.remarks:
        yield CheckResult(remark, is_warning=True)
    for remark in unscored(settings, training.evaluations, training.last_step()):
        yield CheckResult(remark, is_warning=True)
    for remark in never_due(settings.profile, training.evaluations, training.last_step()):
        yield CheckResult(remark, is_warning=True)
    yield from _evaluations_fit(training)
    if all(one.names() is not None for one in training.evaluations):
        _check_names(settings, training.evaluations)
    before, read_before = step.compile_seconds, step.num_read
    programs = [step.compile(target, batch) for batch in (*training.other_batches, training.batch)]
    shapes = f" for {len(programs)} shapes" if training.other_batches else ""
    seconds, memory = step.compile_seconds - before, _memory(programs, target)
    read = ", read from the cache" if step.num_read - read_before == len(programs) else ""
    yield CheckResult(f"step compiled{shapes} in {seconds:.1f} s{read}; {memory} per device")
    if step.jaxpr is not None:
        check_lookups(step.jaxpr, target, training.batch, training.first_rows())
        processes.compare("the rows that the first batch looks up", str)  # so that an error of one ends all
    for remark in unused(training):
        yield CheckResult(remark, is_warning=True)


def _evaluations_fit(training: Training) -> Iterator[CheckResult]:
    """Check each evaluation, and yield the results. If there are many, the first is a summary of all."""
    texts = []
    for one in training.evaluations:
        if one.scoring.check(training.target):
            number = one.scoring.num_examples
            texts.append(
                f"evaluation {one.name!r} fits: {'any number of' if number is None else number} examples"
            )
    are_many = len(texts) > _MOST_EVALUATIONS
    if are_many:
        yield CheckResult(f"{len(texts)} evaluations fit: {listed(one.name for one in training.evaluations)}")
    yield from (CheckResult(text, is_detail=are_many) for text in texts)


def try_first_state(
    settings: Settings, training: Training, state: TrainState, checkpoints: Checkpoints | None
) -> Iterator[CheckResult]:
    """Check evaluations and checkpoints with the first state, and yield the results. Collective.

    Evaluations whose scores are not known yet are tried with a few examples. A new run saves its first state
    if its settings say so; a run that continues has shown that it can save.
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
    if checkpoints is not None and settings.tries_saving and checkpoints.resumed is None:
        always: Callable[[int], bool] = lambda step: True  # noqa: E731
        checkpoints.saver(always)(Tick(int(state.step)), state, training.data, {})
        checkpoints.wait()
        yield CheckResult(f"state saved in {checkpoints.directory}")


def _check_names(settings: Settings, evaluations: Sequence[EvaluationPart]) -> None:
    """Check that no score has the name of a time, and that policies read only scores that exist."""
    scores = [name for one in evaluations for name in one.names() or ()]
    for one in evaluations:
        if seconds_of(one.name) in scores:
            raise UsageError(
                f"{one.field} gives a score called 'seconds', but reports use this name for the time of the "
                "evaluation.\n  Give the score another name."
            )
    policies: list[tuple[str, Any]] = [("stop.early", settings.stop.early)]
    if settings.save is not None:
        policies.append(("save.keep", settings.save.keep))
    for field, policy in policies:
        for metric in metrics_of(policy):
            if metric not in scores:
                raise UsageError(
                    f"{field} reads the score {metric!r}, but no evaluation gives it."
                    f"{did_you_mean(metric, scores)}\n"
                    f"  The scores are: {', '.join(scores) or 'none; give examples to evaluate on'}."
                )


def _shapes(batch: PyTree) -> str:
    return ", ".join(
        f"{name or 'batch'} {x.dtype}{list(x.shape)}" for name, x in tree.named_leaves(batch).items()
    )


def _memory(programs: Sequence[jax.stages.Compiled], target: TrainState) -> str:
    """Return as text the memory of the state on a device, and the most that a step needs besides it."""
    state = sum(device_bytes(x, x.sharding) for x in jax.tree.leaves(target))
    analyses = [analysis for program in programs if (analysis := program.memory_analysis())]
    work = max((analysis.temp_size_in_bytes for analysis in analyses), default=None)
    return f"state {human_bytes(state)}{'' if work is None else f' + {human_bytes(work)} at work'}"
