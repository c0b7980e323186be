"""A whole run in order: it opens its resources, checks its parts, gets the first state, and runs the loop."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

# Before anything is traced: it loads Pallas, and JAX traces again what it traced before that.
import jax.extend.core  # noqa: F401

from meshwright.base._internal import PyTree, screen_width
from meshwright.engine._changes import show_changes
from meshwright.engine._checks import CheckResult, check_parts, try_first_state
from meshwright.engine._compile_ahead import offer_compiling_ahead, only_compile
from meshwright.engine._deadline import deadline
from meshwright.engine._earlier_steps import go_back, step_to_go_back_to
from meshwright.engine._evaluations import Evaluations
from meshwright.engine._hooks import Hooks, LoopContext, open_tracer
from meshwright.engine._kept_open import KeptOpen
from meshwright.engine._ledger import saving_remark
from meshwright.engine._messages import line_printer
from meshwright.engine._open_run import OpenRun, newest_step, open_run
from meshwright.engine._out_of_memory import explaining_out_of_memory
from meshwright.engine._outcome import Outcome
from meshwright.engine._reports import heading, read_reports, warn_of_lost_reports, writers
from meshwright.engine._rollback import Rollbacks, Spiked
from meshwright.engine._settings import Settings
from meshwright.engine._stopping import Stopping
from meshwright.engine._training import Data, Training
from meshwright.observe._internal import StepTime
from meshwright.processes import _internal as processes
from meshwright.training._internal import (
    RUN_AHEAD,
    PhaseClock,
    RunningWatchdog,
    TrainState,
    fit,
    unwatched,
    watchdog,
)


def run_engine(
    settings: Settings,
    make: Callable[[contextlib.ExitStack, RunningWatchdog], Training],
    kept_open: KeptOpen | None = None,
) -> Outcome:
    """Train, and continue from the newest checkpoint in the run directory, if there is one. Collective."""
    started = time.monotonic() if settings.started is None else settings.started
    with contextlib.ExitStack() as stack:
        stack.enter_context(processes.broadcasting_errors())
        watch = stack.enter_context(_watched(settings, PhaseClock(started)))
        training = make(stack, watch)
        processes.compare("the state and the examples", training.facts)
        processes.compare("the step to go back to", lambda: str(settings.from_step))
        if processes.is_compile_only():
            only_compile(settings, training, watch)
        opened = stack.enter_context(open_run(settings, training, watch, started, kept_open))
        with explaining_out_of_memory(settings, training):
            outcome = train(settings, training, opened)
        opened.record.finish(outcome.summary())
        if kept_open is not None:
            kept_open.step = outcome.step
    return outcome


def train(settings: Settings, training: Training, opened: OpenRun) -> Outcome:
    """Check the parts, restore or make the first state, and train, with resources that are already open."""
    rollbacks, spiked = Rollbacks(settings, training, opened.directory), None
    training = dataclasses.replace(training, data=rollbacks.data)
    warn = line_printer(opened.console, logging.WARNING, is_shown=settings.is_shown)
    training.step.tell = lambda text: warn(f"  ! {text}")
    while True:
        try:
            return _attempt(settings, training, opened, rollbacks, spiked)
        except Spiked as found:
            spiked = found.with_traceback(None)  # whose frames would keep a second state in memory
        rollbacks.check(spiked.spike)


def _attempt(
    settings: Settings, training: Training, opened: OpenRun, rollbacks: Rollbacks, spiked: Spiked | None
) -> Outcome:
    """Train to the end of the run; after a spike, from the newest checkpoint on."""
    with contextlib.ExitStack() as stack:
        say, checkpoints = opened.say, opened.checkpoints
        if spiked is None:
            with opened.signals.exiting_on_sigterm():  # nothing of this attempt can be saved yet
                state = _first_state(settings, training, opened)
            rollbacks.begin(int(state.step))
        else:
            state = _state_before(spiked, settings, training, opened, rollbacks)
        first, is_resumed = int(state.step), checkpoints is not None and checkpoints.resumed is not None
        evaluate, step_time = Evaluations(training.evaluations, opened.directory), StepTime(RUN_AHEAD)
        # In rounds, each training would read the reports of all trainings before it, but needs none of them.
        if is_resumed or evaluate.needs_reports or first > training.first_step():
            evaluate.restore(read_reports(opened.directory, until=first), after=training.first_step())
        stop = _stopping(settings, opened, evaluate)
        if (reason := _why_over(training, stop, first)) and not (is_resumed and evaluate.has_missing(first)):
            say(f"  {reason}")
            if checkpoints is not None:  # an attempt that was killed may have left some
                checkpoints.is_removal_owed = processes.is_lead()
            scores = {**evaluate.newest, **(checkpoints.scores() if checkpoints else {})}
            return Outcome(first, scores, 0.0, state)
        _tell(opened, training, first, is_resumed=is_resumed)
        write = writers(stack, settings, training, opened, step_time, after=first)
        expected = training.num_steps(first)
        opened.console.expect(expected)
        if settings.is_shown and processes.is_lead():
            stack.enter_context(opened.console)
        started = time.perf_counter()
        last = training.last_step()
        context = LoopContext(settings, training, opened, last, evaluate, write, step_time, stop, rollbacks)
        state = _fit(context, state, is_new=not is_resumed and first == 0)
        if stop.interruption:
            if checkpoints is None:
                stop.interruption.add_note("This training saved no checkpoint.")
            raise stop.interruption
        outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
        if outcome.step < (expected or 0):
            reason = "the scores stopped improving: done" if stop.is_early else "the data ended"
            say(f"  {reason} after {outcome.step} of {expected} steps")
        return outcome


def _tell(opened: OpenRun, training: Training, first: int, *, is_resumed: bool) -> None:
    """Tell what the earlier attempts leave to be said, and begin the record and the ledger."""
    if remark := opened.record.begin(opened.checkpoints, training, first):
        opened.say(remark)
    if remark := saving_remark(opened.ledger.begin(None if training.is_continued else first)):
        opened.say(remark)
    if opened.directory and is_resumed:
        warn_of_lost_reports(opened.directory, first, opened.say)


def _state_before(
    spiked: Spiked, settings: Settings, training: Training, opened: OpenRun, rollbacks: Rollbacks
) -> TrainState:
    """Return the newest state that was saved, which is before the spike, and leave out its batches."""
    with opened.watch.phase("restore"):
        if opened.checkpoints is not None:
            rollbacks.keep_until(spiked, opened.checkpoints)
        fresh = training.first_state(newest_step(opened.checkpoints, training.target))

        def begun_again() -> TrainState:
            rollbacks.data.restart()
            return fresh()

        state = _resumed(settings, training, opened, begun_again)
        opened.say(rollbacks.decide(spiked, int(state.step)))
    return state


def _stopping(settings: Settings, opened: OpenRun, evaluate: Evaluations) -> Stopping:
    when, every = settings.stop, settings.logging.every
    until = deadline(when.max_seconds, opened.started, when.job_margin_seconds, opened.say)
    return Stopping(opened.signals, when.early, until, every, evaluate.history)


def _why_over(training: Training, stop: Stopping, step: int) -> str | None:
    """Return why there are no more steps to train, or None if there are some."""
    if step >= training.last_step() or training.data.is_empty():
        return (
            f"already at step {step}: {training.asked} asks for no more steps. To train more, give a larger "
            "number; to begin again, another workdir"
        )
    return f"ended at step {step}: the scores had stopped improving" if stop.ended_early() else None


def _first_state(settings: Settings, training: Training, opened: OpenRun) -> TrainState:
    """Check all parts, compile the step, and return the first state, restored or new."""
    say, watch, checkpoints = opened.say, opened.watch, opened.checkpoints
    if training.is_continued:
        for batch in (*training.other_batches, training.batch):
            training.step.compile(training.target, batch)
        return training.first_state(None)()
    for line in heading(settings, training.layout.mesh):
        say(line)
    width = screen_width() if settings.is_verbose else None
    params = {"params": training.target.params}
    opened.detail(training.layout.explain(params, frozen=training.frozen, width=width))
    if checkpoints is not None and processes.on_lead(checkpoints.has_any):
        show_changes(settings, opened)
    back = step_to_go_back_to(settings, opened)
    with watch.phase("restore"):
        fresh = training.first_state(newest_step(checkpoints, training.target) if back is None else back)
    for source in training.began_from:
        say(f"  ↳ begins from {source}")
    with watch.phase("compile"):
        _show(check_parts(settings, training), opened)
    with watch.phase("restore"):
        if back is not None:
            go_back(back, opened)
        state = _resumed(settings, training, opened, fresh)
    with watch.phase("compile"):
        _show(try_first_state(settings, training, state, checkpoints), opened)
    if checkpoints is not None:
        offer_compiling_ahead(training)
    return state


def _show(results: Iterable[CheckResult], opened: OpenRun) -> None:
    for result in results:
        (opened.detail if result.is_detail else opened.say)(str(result))


def _resumed(
    settings: Settings, training: Training, opened: OpenRun, fresh: Callable[[], TrainState]
) -> TrainState:
    checkpoints = opened.checkpoints
    if checkpoints is None:
        return fresh()
    keeps = settings.save is None or settings.save.data_position
    state = checkpoints.resume(training.target, training.data if keeps else None, otherwise=fresh)
    for warning in checkpoints.passed_over:
        opened.say(f"  ✗ {warning}")
    if checkpoints.resumed is not None:
        where = ", from memory" if checkpoints.is_from_memory else ""
        opened.say(f"  ↻ continuing after step {checkpoints.resumed}{where}")
        if not keeps:
            opened.say("    but the data starts from the beginning, because save.data_position is False")
    return state


def _fit(context: LoopContext, state: TrainState, *, is_new: bool) -> TrainState:
    """Run the loop from `state` on, with the watchdog and the profiler, and return the last state, saved."""
    training, opened, stop = context.training, context.opened, context.stop
    with contextlib.ExitStack() as stack:
        stack.callback(opened.watch.enter, "end")
        trace, hooks = stack.enter_context(open_tracer(context)), Hooks(context, state)
        if hooks.begin(is_new=is_new):
            state = fit(
                training.step,
                state,
                _Timed(training.data, opened.watch),
                max_steps=int(state.step) if stop.ends_early() else context.last,
                evaluate=hooks.evaluate,
                log=hooks.log,
                save=hooks.save,
                trace=trace,
                on_step=hooks.on_step,
                stop=stop,
            )
        with opened.watch.phase("save"):
            if opened.checkpoints:
                opened.checkpoints.wait()
    return state


class _Timed:
    """The batches of a run; the time to wait for each is in the phase `input`."""

    def __init__(self, data: Data, watch: RunningWatchdog):
        self._data, self._watch = data, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PyTree:
        before = self._watch.enter("input")
        try:
            return next(self._data)
        finally:
            self._watch.enter(before)


@contextlib.contextmanager
def _watched(settings: Settings, clock: PhaseClock) -> Iterator[RunningWatchdog]:
    chosen = settings.watchdog
    if chosen is None:
        yield unwatched(clock)
        return
    with watchdog(chosen.timeout_seconds, kill=chosen.kill, clock=clock) as watch:
        yield watch
