"""The rooms of a run's loop: reports, evaluations and saves, in the order that policies need."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from meshwright import process
from meshwright.engine._evaluations import Evaluations
from meshwright.engine._open_run import OpenRun
from meshwright.engine._policies import as_when, is_informed
from meshwright.engine._reports import gathering, learning_rates
from meshwright.engine._settings import Saving, Settings
from meshwright.engine._stopping import Stopping
from meshwright.engine._training import Training
from meshwright.evaluation import Scores
from meshwright.metrics import StepTime, Values, Writer, screens_of
from meshwright.profile import Trace, tracer
from meshwright.train import TrainState, num_updates
from meshwright.tree import PyTree
from meshwright.when import Tick, When, asked_once, never


@dataclass(frozen=True)
class LoopContext:
    """The objects that each turn of the loop uses."""

    settings: Settings
    training: Training
    opened: OpenRun
    last: int
    """The step after which it ends."""
    evaluate: Evaluations
    write: Writer
    step_time: StepTime
    stop: Stopping


@dataclass(frozen=True)
class _Kept:
    """Takes reports for who writes them; screens among `writers` are shown the first step by itself."""

    reports: list[Values]
    writers: tuple[Writer, ...]

    def __call__(self, step: int, values: Values, /) -> None:
        self.reports.append(values)


class Hooks:
    """The loop's rooms, which share the newest state.

    A policy that goes by reports is asked when the report of its step is known. So `evaluate` only takes the
    state, and `log` makes the report, evaluates, and writes both.
    """

    def __init__(self, context: LoopContext, state: TrainState):
        self._context, self._state = context, state
        self._made = made = list[Values]()
        saving = context.settings.saving
        self._when_saved = _when_saved(context)
        self._is_by_scores = saving is not None and is_informed(saving.when)
        before = never if self._is_by_scores else self._when_saved
        keep = _Kept(made, (context.write,))  # not of self: no cycle
        self._gather = gathering(context.settings, keep, before, context.training, context.evaluate)
        self._save = _saver(context, self._when_saved)

    def begin(self, *, is_new: bool) -> bool:
        """Do what is due before the first step, and return whether to make any.

        What was evaluated or saved of this step before a restart is not done again.
        """
        context, tick = self._context, Tick(int(self._state.step))
        if not context.stop.is_interrupted(tick.step):
            scores = self._scores(tick, context.stop.is_interrupted) or {}
            if scores:
                self._write(tick.step, {**scores, **self._rate()}, scores)
            if is_new:
                self.save(tick, self._state)
        return not context.stop.is_interrupted(tick.step)

    def on_step(self, tick: Tick) -> None:
        """Take it that a step is done."""
        self._context.opened.watch(tick)
        self._context.step_time(tick)
        if process.is_lead():
            self._context.opened.console.on_step(tick)

    def evaluate(self, tick: Tick, state: TrainState) -> None:
        """Take the state; `log` evaluates it."""
        self._state = state
        self._context.training.reached(state)

    def log(self, tick: Tick, metrics: PyTree, scores: Scores | None = None) -> None:
        """Report what was measured since the last report, if that is due, and what evaluations find."""
        context = self._context
        self._gather(tick, metrics, None)
        if self._made:
            self._made[0] = {**self._made[0], **self._rate(), **self._made[0]}  # a metric of that name stands
            context.evaluate.update_known(self._made[0])
        found = self._scores(tick, context.stop.must_abort) or {}
        if self._is_by_scores and not (self._made or tick.last) and self._when_saved(tick.step):
            self._gather(Tick(tick.step, last=True), {}, None)  # what is left, before it is saved
        report = self._made.pop() if self._made else self._rate() if found else {}
        if report or found:
            self._write(tick.step, {**report, **found}, found)

    def save(self, tick: Tick, state: TrainState, *_: object) -> None:
        """Save the state if that is due.

        Where scores end the run that is in the turn that follows, with those that are found only then.
        """
        if tick.last or not self._context.stop.ends_early():
            with self._context.opened.watch.phase("save"):
                self._save(tick, state)

    def _scores(self, tick: Tick, must_abort: Callable[[int], bool]) -> Scores | None:
        """Evaluate what is due. Who takes the machine back leaves time to save, and none to evaluate."""
        context = self._context
        if context.stop.interruption is not None:
            return None
        with context.opened.watch.phase("evaluation"):
            found = context.evaluate(tick, self._state, must_abort)
        if found:
            context.evaluate.update_known(found)
        return found

    def _write(self, step: int, values: Values, scores: Scores) -> None:
        self._context.write(step, values)
        if scores:
            for screen in screens_of(self._context.write):
                screen.evaluated(step, scores)

    def _rate(self) -> dict[str, float]:
        """Return by which learning rates the last update was made, as far as that is known."""
        given, training = self._context.settings.reporting.learning_rate, self._context.training
        return learning_rates(given, training, lambda: num_updates(self._state))


def _when_saved(context: LoopContext) -> When:
    """Return when to save: the last step in the turn that follows it, with the scores found only then."""
    training, saving = context.training, context.settings.saving
    if saving is None or context.opened.checkpoints is None:
        return never
    when = as_when(saving.when, context.evaluate.at)
    return asked_once(lambda step: step < context.last and when(step) and not training.data.is_empty())


def _saver(context: LoopContext, when_saved: When) -> Callable[[Tick, TrainState], None]:
    checkpoints, saving = context.opened.checkpoints, context.settings.saving
    if checkpoints is None or saving is None:
        return lambda tick, state: None
    save, data = checkpoints.saver(when_saved), context.training.data if saving.keeps_position else None
    # With all scores of the step: some may have been found in the turn before the last.
    return lambda tick, state: save(tick, state, data, _scores_and_marks(context, saving, tick))


def _scores_and_marks(context: LoopContext, saving: Saving, tick: Tick) -> Scores:
    return {**context.evaluate.at(tick.step), **saving.marks()}


def traced(context: LoopContext) -> contextlib.AbstractContextManager[Trace]:
    """Return the loop's `trace`, which is open in the context."""
    profile, directory = context.settings.profile, context.opened.directory
    if directory is None:
        return contextlib.nullcontext(lambda tick: contextlib.nullcontext())
    return tracer(directory, profile.steps, num_steps=profile.num_steps, processes=profile.processes)
