"""The functions that the loop calls to report, evaluate and save, in the order that policies need."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.base._internal import PyTree
from meshwright.engine._evaluation._means import Scores
from meshwright.engine._evaluations import Evaluations
from meshwright.engine._open_run import OpenRun
from meshwright.engine._policies import as_when, is_informed
from meshwright.engine._reports import learning_rates, report_maker
from meshwright.engine._rollback import Rollbacks
from meshwright.engine._settings import Settings
from meshwright.engine._stopping import Stopping
from meshwright.engine._training import Training
from meshwright.observe._internal import StepTime, Trace, Values, Writer, screens_of, tracer
from meshwright.processes import _internal as processes
from meshwright.processes._internal import Tick, When, asked_once, never
from meshwright.training._internal import TrainState, num_updates


@dataclass(frozen=True)
class LoopContext:
    """The objects that the hooks of the loop use."""

    settings: Settings
    training: Training
    opened: OpenRun
    last: int
    """The step after which the loop ends."""
    evaluate: Evaluations
    write: Writer
    step_time: StepTime
    stop: Stopping
    rollbacks: Rollbacks


@dataclass(frozen=True)
class _Buffer:
    """A writer that keeps reports in a list. Screens among `writers` still show the first step at once."""

    reports: list[Values]
    writers: tuple[Writer, ...]

    def __call__(self, step: int, values: Values, /) -> None:
        self.reports.append(values)


class Hooks:
    """The loop's `on_step`, `evaluate`, `log` and `save`.

    A policy that reads reports is called when the report of its step is known. So `evaluate` only keeps the
    state; `log` makes the report, evaluates, and writes both.
    """

    def __init__(self, context: LoopContext, state: TrainState):
        self._context, self._state = context, state
        self._pending = pending = list[Values]()
        save = context.settings.save
        self._when_saved = _when_saved(context)
        self._is_by_scores = save is not None and is_informed(save.when)
        before = never if self._is_by_scores else self._when_saved
        buffer = _Buffer(pending, (context.write,))  # does not refer to self, which would make a cycle
        self._gather = report_maker(context.settings, buffer, before, context.training, context.evaluate)
        self._save = _saver(context, self._when_saved)
        checkpoints = context.opened.checkpoints
        always = self._is_by_scores or (checkpoints is not None and checkpoints.host_memory is not None)
        self._judge = context.rollbacks.judge(context.settings.logging.every, always, self._when_saved)

    def begin(self, *, is_new: bool) -> bool:
        """Evaluate and save what is due before the first step, and return whether to train at all.

        Evaluations and checkpoints of this step that were made before a restart are not made again.
        """
        context, tick = self._context, Tick(int(self._state.step))
        if not context.stop.is_interrupted(tick.step):
            scores = self._scores(tick, context.stop.is_interrupted) or {}
            if scores:
                self._write(tick.step, {**scores, **self._rate()}, scores)
            checkpoints = context.opened.checkpoints
            if is_new:
                self.save(tick, self._state)
            elif scores and checkpoints and processes.on_lead(checkpoints.latest) == tick.step:
                self.save(Tick(tick.step, last=True), self._state)  # adds the scores to the checkpoint
        return not context.stop.is_interrupted(tick.step)

    def on_step(self, tick: Tick) -> None:
        """Note that a step is finished: for the watchdog, the step times and the progress on the screen."""
        self._context.opened.watch(tick)
        self._context.step_time(tick)
        if processes.is_lead():
            self._context.opened.console.on_step(tick)

    def evaluate(self, tick: Tick, state: TrainState) -> None:
        """Keep the state; `log` evaluates it."""
        self._state = state
        self._context.training.reached(state)

    def log(self, tick: Tick, metrics: PyTree, scores: Scores | None = None) -> None:
        """Report the metrics since the last report, if a report is due, and the scores of evaluations."""
        context = self._context
        if self._judge is not None:
            self._judge(tick, metrics)
        self._gather(tick, metrics, None)
        if self._pending:
            made = self._pending[0]
            self._pending[0] = {**made, **self._rate(), **made}  # a metric called `learning_rate` wins
            context.evaluate.update_known(self._pending[0])
        found, failure = {}, None
        try:
            found = self._scores(tick, context.stop.must_abort) or {}
        except Exception as error:
            failure = error
        context.opened.signals.is_over = tick.last  # the loop asks no more whether to stop
        if self._is_by_scores and not (self._pending or tick.last) and self._when_saved(tick.step):
            self._gather(Tick(tick.step, last=True), {}, None)  # the rest, before the state is saved
        # The last tick repeats a step, of which the rate is told already if nothing is left to report.
        rate = self._rate() if found and not tick.last else {}
        report = self._pending.pop() if self._pending else rate
        if report or found:
            self._write(tick.step, {**report, **found}, found)
        if failure is not None:
            self._save_before(failure, tick.step)
            raise failure

    def _save_before(self, failure: Exception, step: int) -> None:
        """Save the state if an evaluation raised an error: the evaluation is owed then, as if interrupted."""
        checkpoints = self._context.opened.checkpoints
        if checkpoints is None:
            return
        try:
            processes.check_all_failed()  # a save is collective
            self.save(Tick(step, last=True), self._state)
            checkpoints.wait()
        except Exception as error:
            failure.add_note(f"The state of step {step} was not saved: {error}")
        else:
            failure.add_note(f"The state of step {step} is saved. The next start makes the evaluation first.")

    def save(self, tick: Tick, state: TrainState, *_: object) -> None:
        """Save the state if that is due.

        If the scores end the run at this step, the last tick saves: some scores are computed only then.
        """
        if tick.last or not self._context.stop.ends_early():
            opened = self._context.opened
            with opened.watch.phase("save"):
                if self._save(tick, state):
                    self._learn_of_saves()
                    opened.ledger.save(tick.step)

    def _learn_of_saves(self) -> None:
        """Note how long a save takes, as the next one waits for it."""
        opened = self._context.opened
        if opened.checkpoints and (seconds := opened.checkpoints.longest_save_seconds):
            opened.watch.clock.record_usual(seconds)

    def _scores(self, tick: Tick, must_abort: Callable[[int], bool]) -> Scores | None:
        """Return the scores of the evaluations that are due, or None if there are none.

        An interrupted run does not evaluate: a platform that takes its machine back leaves time to save only.
        """
        context = self._context
        if context.stop.interruption is not None:
            return None
        clock = context.opened.watch.clock

        def before_batch(step: int) -> bool:
            clock.mark_progress()
            return must_abort(step)

        with context.opened.watch.phase("evaluation"):
            found = context.evaluate(tick, self._state, before_batch)
            if found:
                clock.record_usual()
        if found:
            context.evaluate.update_known(found)
        return found

    def _write(self, step: int, values: Values, scores: Scores) -> None:
        with self._context.opened.watch.phase("report"):
            self._context.write(step, values)
        self._context.opened.ledger.note()
        if scores:
            for screen in screens_of(self._context.write):
                screen.evaluated(step, scores)

    def _rate(self) -> dict[str, float]:
        """Return the learning rates of the last update, as far as they are known."""
        given, training = self._context.settings.learning_rate, self._context.training
        return learning_rates(given, training, lambda: num_updates(self._state))


def _when_saved(context: LoopContext) -> When:
    """Return the policy of when to save; the last step is left to the last tick, which has all its scores."""
    training, save = context.training, context.settings.save
    if save is None or context.opened.checkpoints is None:
        return never
    when = as_when(save.when, lambda step: {**context.evaluate.at(step), **context.settings.marks()})
    return asked_once(lambda step: step < context.last and when(step) and not training.data.is_empty())


def _saver(context: LoopContext, when_saved: When) -> Callable[[Tick, TrainState], bool]:
    checkpoints, settings = context.opened.checkpoints, context.settings
    if checkpoints is None or settings.save is None:
        return lambda tick, state: False
    save, data = checkpoints.saver(when_saved), context.training.data if settings.save.data_position else None
    # All scores of the step: some of them may have been computed before the last tick.
    return lambda tick, state: save(tick, state, data, {**context.evaluate.at(tick.step), **settings.marks()})


def open_tracer(context: LoopContext) -> contextlib.AbstractContextManager[Trace]:
    """Return a context manager that yields the loop's `trace`."""
    profile, directory = context.settings.profile, context.opened.directory
    if directory is None:
        return contextlib.nullcontext(lambda tick: contextlib.nullcontext())
    return tracer(directory, profile.steps, num_steps=profile.num_steps, processes=profile.processes)
