"""A run: what it needs is opened, all is checked, and the loop goes from the first state to the last."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.engine._changes import tell_changes
from meshwright.engine._checks import Found, checked, tried
from meshwright.engine._evaluations import Evaluations, Scores
from meshwright.engine._opened import Opened, open_run
from meshwright.engine._outcome import Outcome
from meshwright.engine._policies import as_when
from meshwright.engine._reports import (
    heading,
    reported,
    reports,
    tell_of_lost_reports,
    with_learning_rate,
    writers,
)
from meshwright.engine._settings import Settings
from meshwright.engine._stopping import Stopping
from meshwright.engine._training import Training
from meshwright.metrics import Log, StepTime, Writer, tee
from meshwright.profile import Trace, tracer
from meshwright.tables import screen_width
from meshwright.train import (
    RUN_AHEAD,
    TrainState,
    Tx,
    Watchdog,
    fit,
    num_updates,
    unwatched,
    watchdog,
)
from meshwright.when import Tick, When, asked_once


def run(
    settings: Settings, optimizer: Tx, make: Callable[[contextlib.ExitStack, Watchdog], Training]
) -> Outcome:
    """Train, continuing what the run directory holds. Collective.

    Args:
      settings: how the run goes.
      optimizer: the optimizer.
      make: makes the parts. What it opens, it gives to the stack, which is closed after the run, and it
        reads the first batch in the watchdog's phase of that name.

    Raises: as `mw.run`.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.telling())
        watch = stack.enter_context(_watched(settings))
        training = make(stack, watch)
        process.compare("the state and the examples", training.facts)
        opened = stack.enter_context(open_run(settings, training.target, optimizer, watch, started))
        outcome = train(settings, training, opened)
        opened.record.summary = outcome.summary()
    return outcome


def train(settings: Settings, training: Training, opened: Opened) -> Outcome:
    """Check, restore and train, in what is open already."""
    with contextlib.ExitStack() as stack:
        say, checkpoints = opened.say, opened.checkpoints
        state = _first_state(settings, training, opened)
        first, last = int(state.step), training.last_step()
        if first >= last or training.data.is_empty():
            say(f"  already at step {first}: {training.asked} asks for nothing more")
            return Outcome(first, checkpoints.scores() if checkpoints else {}, 0.0, state)
        evaluate, step_time = Evaluations(training.evaluations, opened.directory), StepTime(RUN_AHEAD)
        evaluate.recall(reported(opened.directory, before=first), after=training.first_step())
        stop = Stopping(
            opened.signals, settings.stop, settings.reporting.every, evaluate.history, opened.started
        )
        if stop.was_early():
            say(f"  ended at step {first}: the scores had got no better")
            return Outcome(first, checkpoints.scores() if checkpoints else {}, 0.0, state)
        opened.record.begin(checkpoints, training, first)
        if opened.directory and checkpoints and checkpoints.resumed is not None:
            tell_of_lost_reports(opened.directory, first, say)
        write = writers(stack, settings, training, opened, step_time, after=first)
        expected = training.num_steps(first)
        opened.console.expect(expected)
        if settings.is_shown and process.is_lead():
            stack.enter_context(opened.console)
        started = time.perf_counter()
        state = _fit(_Turn(settings, training, opened, last, evaluate, write, step_time, stop), state)
        if stop.interruption:
            if checkpoints is None:
                stop.interruption.add_note("Nothing of this training is saved by itself.")
            raise stop.interruption
        outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
        if outcome.step < (expected or 0):
            why = "the scores got no better: done" if stop.is_early else "the data ended"
            say(f"  {why} after {outcome.step} of {expected} steps")
        return outcome


@dataclass(frozen=True)
class _Turn:
    """What each turn of the loop uses."""

    settings: Settings
    training: Training
    opened: Opened
    last: int
    """The step after which it ends."""
    evaluate: Evaluations
    write: Writer
    step_time: StepTime
    stop: Stopping


def _first_state(settings: Settings, training: Training, opened: Opened) -> TrainState:
    """Check all parts, compile, and return the state to go on from, restored or new."""
    say, watch, checkpoints = opened.say, opened.watch, opened.checkpoints
    if training.is_continued:
        for batch in (*training.other_batches, training.batch):
            training.step.compile(training.target, batch)
        return training.first_state(None)()
    for line in heading(settings, training.layout.mesh):
        say(line)
    width = screen_width() if settings.is_verbose else None
    opened.detail(training.layout.explain({"params": training.target.params}, width=width))
    if checkpoints is not None and process.on_lead(checkpoints.latest) is not None:
        tell_changes(settings, opened)
    with watch.phase("restore"):
        fresh = training.first_state(_newest(training, checkpoints))
    with watch.phase("compile"):
        for found in checked(settings, training):
            _tell(found, opened)
    with watch.phase("restore"):
        state = _resumed(settings, training, opened, fresh)
    with watch.phase("compile"):
        for found in tried(settings, training, state, checkpoints):
            _tell(found, opened)
    return state


def _tell(found: Found, opened: Opened) -> None:
    (opened.detail if found.is_detail else opened.say)(str(found))


def _newest(training: Training, checkpoints: Checkpoints | None) -> int | None:
    """Return the step of the newest checkpoint; None if there is none, or one of a part of the state."""
    if checkpoints is None or checkpoints.left_out(training.target):
        return None
    return process.on_lead(checkpoints.latest)


def _resumed(
    settings: Settings, training: Training, opened: Opened, fresh: Callable[[], TrainState]
) -> TrainState:
    checkpoints = opened.checkpoints
    if checkpoints is None:
        return fresh()
    keeps = settings.saving is None or settings.saving.keeps_position
    state = checkpoints.resume(training.target, training.data if keeps else None, otherwise=fresh)
    for warning in checkpoints.passed_over:
        opened.say(f"  ✗ {warning}")
    if checkpoints.resumed is not None:
        opened.say(f"  ↻ continuing after step {checkpoints.resumed}")
        if not keeps:
            opened.say("    with the data from their beginning: save_input_iterator is False")
    return state


def _fit(turn: _Turn, state: TrainState) -> TrainState:
    """Train from `state` on, watched and profiled, and return the last state when it is saved."""
    training, opened, evaluate, stop = turn.training, turn.opened, turn.evaluate, turn.stop
    watch, when_saved = opened.watch, _when_saved(turn)
    save = _saver(turn, when_saved)
    with contextlib.ExitStack() as stack:
        stack.callback(watch.enter, "end")
        trace, newest = stack.enter_context(_tracer(turn)), state

        def evaluated(tick: Tick, state: TrainState) -> Scores | None:
            nonlocal newest
            newest = state
            training.reached(state)
            # Whoever takes the machine back leaves time to save, and none to evaluate.
            with watch.phase("evaluation"):
                return None if stop.is_ending(tick) else evaluate(tick, state)

        def on_step(tick: Tick) -> None:
            watch(tick)
            turn.step_time(tick)
            if process.is_lead():
                opened.console.on_step(tick)

        state = fit(
            training.step,
            state,
            training.data,
            steps=turn.last,
            evaluate=evaluated,
            log=_log(turn, when_saved, lambda: num_updates(newest)),
            save=lambda tick, state, *_: save(tick, state),
            trace=trace,
            on_step=on_step,
            stop=stop,
        )
        with watch.phase("save"):
            if opened.checkpoints:
                opened.checkpoints.wait()
    return state


def _log(turn: _Turn, when_saved: When, updates: Callable[[], int]) -> Log:
    """Return the loop's `log`; `updates` returns how many updates were made."""
    write = tee(turn.write, turn.evaluate.hear)
    write = with_learning_rate(write, turn.settings.reporting.learning_rate, updates)
    return reports(turn.settings, write, when_saved, turn.training, turn.evaluate)


def _when_saved(turn: _Turn) -> Callable[[int], bool]:
    """Return when to save: the last step in the turn that follows it, with the scores found only then."""
    training, saving = turn.training, turn.settings.saving
    if saving is None or turn.opened.checkpoints is None:
        return lambda step: False
    when = as_when(saving.when, turn.evaluate.at)
    return asked_once(lambda step: step < turn.last and when(step) and not training.data.is_empty())


def _saver(turn: _Turn, when_saved: Callable[[int], bool]) -> Callable[[Tick, TrainState], None]:
    checkpoints, saving = turn.opened.checkpoints, turn.settings.saving
    if checkpoints is None or saving is None:
        return lambda tick, state: None
    save, data = checkpoints.saver(when_saved), turn.training.data if saving.keeps_position else None

    def saved(tick: Tick, state: TrainState) -> None:
        # With all scores of the step: some may have been found in the turn before the last.
        with turn.opened.watch.phase("save"):
            save(tick, state, data, {**turn.evaluate.at(tick.step), **saving.marks()})

    return saved


@contextlib.contextmanager
def _watched(settings: Settings) -> Iterator[Watchdog]:
    given = settings.watchdog
    if given is None:
        yield unwatched()
        return
    with watchdog(given.timeout_seconds, kill=given.kill) as watch:
        yield watch


def _tracer(turn: _Turn) -> contextlib.AbstractContextManager[Trace]:
    profile, directory = turn.settings.profile, turn.opened.directory
    if directory is None:
        return contextlib.nullcontext(lambda tick: contextlib.nullcontext())
    return tracer(directory, profile.steps, num_steps=profile.num_steps, processes=profile.processes)
