"""Checks before the first step, so that a long run does not fail late because of a small mistake.

Each check yields its result as a short text, or raises an error. Cheap checks come first; checks that need to
compile come last.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from meshwright.base._internal import PyTree, human_bytes, tree
from meshwright.checkpoints._internal import Checkpoints, Keep, metrics_of
from meshwright.engine._evaluation._batches import Scores
from meshwright.engine._evaluations import EvaluationPart, seconds_of
from meshwright.engine._policies import num_steps_of
from meshwright.engine._settings import Profile, Settings
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
    yield from map(CheckResult, training.notes)
    for remark in training.remarks:
        yield CheckResult(remark, is_warning=True)
    for remark in unscored(settings, training.evaluations, training.last_step()):
        yield CheckResult(remark, is_warning=True)
    for remark in never_due(settings.profile, training.evaluations, training.last_step()):
        yield CheckResult(remark, is_warning=True)
    yield from _evaluations_fit(training)
    if all(evaluation.names() is not None for evaluation in training.evaluations):
        _check_names(settings, training.evaluations)
    compile_seconds, read_before = step.compile_seconds, step.num_read
    programs = [step.compile(target, batch) for batch in (*training.other_batches, training.batch)]
    shapes = f" for {len(programs)} shapes" if training.other_batches else ""
    seconds, memory = step.compile_seconds - compile_seconds, _memory(programs, target)
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
    for evaluation in training.evaluations:
        if evaluation.scoring.check(training.target):
            number = evaluation.scoring.num_examples
            texts.append(
                f"evaluation {evaluation.name!r} fits: "
                f"{'any number of' if number is None else number} examples"
            )
    are_many = len(texts) > _MOST_EVALUATIONS
    if are_many:
        yield CheckResult(
            f"{len(texts)} evaluations fit: {listed(evaluation.name for evaluation in training.evaluations)}"
        )
    yield from (CheckResult(text, is_detail=are_many) for text in texts)


def try_first_state(
    settings: Settings, training: Training, state: TrainState, checkpoints: Checkpoints | None
) -> Iterator[CheckResult]:
    """Check evaluations and checkpoints with the first state, and yield the results. Collective.

    Evaluations whose scores are not known yet are tried with a few examples. A new run saves its first state
    if its settings say so; a run that continues has shown that it can save.
    """
    scores: Scores = {}
    unknown = [evaluation for evaluation in training.evaluations if evaluation.names() is None]
    for evaluation in unknown:
        scores |= evaluation.first(state)
    if unknown:
        _check_names(settings, training.evaluations)
    if scores:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        yield CheckResult(f"evaluation of the first examples: {numbers}")
    if checkpoints is not None and settings.tries_saving and checkpoints.resumed is None:
        always: Callable[[int], bool] = lambda step: True  # noqa: E731
        checkpoints.saver(always)(Tick(int(state.step)), state, training.data, {})
        checkpoints.wait()
        yield CheckResult(f"state saved in {checkpoints.directory}")


def _check_names(settings: Settings, evaluations: Sequence[EvaluationPart]) -> None:
    """Check that no score has the name of a time, and that policies read only scores that exist."""
    scores = [name for evaluation in evaluations for name in evaluation.names() or ()]
    for evaluation in evaluations:
        if seconds_of(evaluation.name) in scores:
            raise UsageError(
                f"{evaluation.field} gives a score called 'seconds', but reports use this name for the "
                "time of the evaluation.\n  Give the score another name."
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
    for evaluation in evaluations:
        every = num_steps_of(evaluation.when)
        if every is not None and every > last_step and not evaluation.at_end():
            yield (
                f"evaluations.{evaluation.name}.when={every}, at_end=False: the run ends after step "
                f"{last_step}, so it never makes this evaluation"
            )


def unscored(settings: Settings, evaluations: Collection[EvaluationPart], last_step: int) -> Iterator[str]:
    """Yield a warning for each score that too many checkpoints will lack.

    Only policies that are a number of steps are judged, as others cannot be asked about later steps.
    """
    if (save := settings.save) is None:
        return
    saved_every = num_steps_of(save.when)
    for metric in metrics_of(save.keep):
        for evaluation in evaluations:
            every = num_steps_of(evaluation.when)
            if saved_every is None or every is None or not metric.startswith(evaluation.prefix):
                continue
            saved = range(saved_every, last_step, saved_every)[:_MOST]
            scored = {step for step in saved if step % every == 0}
            if len(saved) > _FEW and (not scored or _surplus(save.keep, saved, scored) > _FEW):
                yield (
                    f"save.when={saved_every} and evaluations.{evaluation.name}.when={every}: "
                    f"{len(saved) - len(scored)} of the first {len(saved)} checkpoints will have no score "
                    f"{metric!r}, by which save.keep chooses. Save what is evaluated: "
                    f"save.when=mw.engine.when_evaluated({evaluation.name!r})"
                )


def _surplus(keep: int | Keep, saved: Collection[int], scored: Collection[int]) -> int:
    """Return how many more checkpoints are kept than if all of them had scores."""
    if isinstance(keep, int):
        return 0
    scores = dict.fromkeys(metrics_of(keep), 0.0)
    num_kept = keep({step: scores if step in scored else {} for step in saved})
    return len(num_kept) - len(keep(dict.fromkeys(saved, scores)))
