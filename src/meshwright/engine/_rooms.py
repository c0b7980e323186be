"""The rooms of a run's loop: reports, evaluations and saves, in the order that policies need."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from meshwright import process
from meshwright.engine._evaluations import Evaluations
from meshwright.engine._opened import Opened
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
class Turn:
    """The objects that each turn of the loop uses."""

    settings: Settings
    training: Training
    opened: Opened
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


class Rooms:
    """The loop's rooms, which share the newest state.

    A policy that goes by reports is asked when the report of its step is known. So `evaluate` only takes the
    state, and `log` makes the report, evaluates, and writes both.
    """

    def __init__(self, turn: Turn, state: TrainState):
        self._turn, self._state = turn, state
        self._made = made = list[Values]()
        saving = turn.settings.saving
        self._when_saved = _when_saved(turn)
        self._is_by_scores = saving is not None and is_informed(saving.when)
        before = never if self._is_by_scores else self._when_saved
        keep = _Kept(made, (turn.write,))  # not of self: no cycle
        self._gather = gathering(turn.settings, keep, before, turn.training, turn.evaluate)
        self._save = _saver(turn, self._when_saved)

    def begin(self, *, is_new: bool) -> bool:
        """Do what is due before the first step, and return whether to make any.

        What was evaluated or saved of this step before a restart is not done again.
        """
        turn, tick = self._turn, Tick(int(self._state.step))
        if not turn.stop.is_told(tick.step):
            scores = self._scores(tick, turn.stop.is_told) or {}
            if scores:
                self._write(tick.step, {**scores, **self._rate()}, scores)
            if is_new:
                self.save(tick, self._state)
        return not turn.stop.is_told(tick.step)

    def on_step(self, tick: Tick) -> None:
        """Take it that a step is done."""
        self._turn.opened.watch(tick)
        self._turn.step_time(tick)
        if process.is_lead():
            self._turn.opened.console.on_step(tick)

    def evaluate(self, tick: Tick, state: TrainState) -> None:
        """Take the state; `log` evaluates it."""
        self._state = state
        self._turn.training.reached(state)

    def log(self, tick: Tick, metrics: PyTree, scores: Scores | None = None) -> None:
        """Report what was measured since the last report, if that is due, and what evaluations find."""
        turn = self._turn
        self._gather(tick, metrics, None)
        if self._made:
            self._made[0] = {**self._made[0], **self._rate(), **self._made[0]}  # a metric of that name stands
            turn.evaluate.hear(self._made[0])
        found = self._scores(tick, turn.stop.leaves_off) or {}
        if self._is_by_scores and not (self._made or tick.last) and self._when_saved(tick.step):
            self._gather(Tick(tick.step, last=True), {}, None)  # what is left, before it is saved
        report = self._made.pop() if self._made else self._rate() if found else {}
        if report or found:
            self._write(tick.step, {**report, **found}, found)

    def save(self, tick: Tick, state: TrainState, *_: object) -> None:
        """Save the state if that is due.

        Where scores end the run that is in the turn that follows, with those that are found only then.
        """
        if tick.last or not self._turn.stop.ends_early():
            with self._turn.opened.watch.phase("save"):
                self._save(tick, state)

    def _scores(self, tick: Tick, leaves_off: Callable[[int], bool]) -> Scores | None:
        """Evaluate what is due. Who takes the machine back leaves time to save, and none to evaluate."""
        turn = self._turn
        if turn.stop.interruption is not None:
            return None
        with turn.opened.watch.phase("evaluation"):
            found = turn.evaluate(tick, self._state, leaves_off)
        if found:
            turn.evaluate.hear(found)
        return found

    def _write(self, step: int, values: Values, scores: Scores) -> None:
        self._turn.write(step, values)
        if scores:
            for screen in screens_of(self._turn.write):
                screen.evaluated(step, scores)

    def _rate(self) -> dict[str, float]:
        """Return by which learning rates the last update was made, as far as that is known."""
        given, training = self._turn.settings.reporting.learning_rate, self._turn.training
        return learning_rates(given, training, lambda: num_updates(self._state))


def _when_saved(turn: Turn) -> When:
    """Return when to save: the last step in the turn that follows it, with the scores found only then."""
    training, saving = turn.training, turn.settings.saving
    if saving is None or turn.opened.checkpoints is None:
        return never
    when = as_when(saving.when, turn.evaluate.at)
    return asked_once(lambda step: step < turn.last and when(step) and not training.data.is_empty())


def _saver(turn: Turn, when_saved: When) -> Callable[[Tick, TrainState], None]:
    checkpoints, saving = turn.opened.checkpoints, turn.settings.saving
    if checkpoints is None or saving is None:
        return lambda tick, state: None
    save, data = checkpoints.saver(when_saved), turn.training.data if saving.keeps_position else None
    # With all scores of the step: some may have been found in the turn before the last.
    return lambda tick, state: save(tick, state, data, _scores_and_marks(turn, saving, tick))


def _scores_and_marks(turn: Turn, saving: Saving, tick: Tick) -> Scores:
    return {**turn.evaluate.at(tick.step), **saving.marks()}


def traced(turn: Turn) -> contextlib.AbstractContextManager[Trace]:
    """Return the loop's `trace`, which is open in the context."""
    profile, directory = turn.settings.profile, turn.opened.directory
    if directory is None:
        return contextlib.nullcontext(lambda tick: contextlib.nullcontext())
    return tracer(directory, profile.steps, num_steps=profile.num_steps, processes=profile.processes)
