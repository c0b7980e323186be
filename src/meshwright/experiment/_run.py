"""From a description to a run: each room is opened, checked, and handed to the loop."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.experiment import _directory
from meshwright.experiment._alike import arrays_of, settings_of
from meshwright.experiment._checks import preflight
from meshwright.experiment._evaluations import Evaluations
from meshwright.experiment._experiment import Experiment
from meshwright.experiment._first_state import first_state, given_to
from meshwright.experiment._parts import (
    Parts,
    batch_sharding,
    data_of,
    mesh_of,
    naming,
    on_hardware,
    parts_of,
)
from meshwright.experiment._policies import as_when
from meshwright.experiment._record import Record
from meshwright.experiment._reports import heading, reported, reports, saying, tell_of_lost_reports, writers
from meshwright.experiment._save import checkpoints_for
from meshwright.experiment._stopping import Stopping
from meshwright.input import Batches
from meshwright.metrics import Console, StepTime, Writer, json_number, sync_jsonl, tee
from meshwright.profile import Trace, tracer
from meshwright.train import RUN_AHEAD, TrainState, Watchdog, check_finite, fit, unwatched, watchdog
from meshwright.when import Tick, asked_once

Scores = dict[str, float]


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Updates made, those of earlier attempts included."""
    scores: Mapping[str, float]
    """The results of the last evaluations: after the last step, but of those that are not made `at_end`."""
    seconds: float
    """How long this process trained and evaluated; compiling the step and restoring do not count."""
    state: TrainState
    """The state after the last update."""

    def summary(self) -> dict[str, Any]:
        """Return all but the state, as values that strict JSON can hold."""
        scores = {name: json_number(score) for name, score in self.scores.items()}
        return {"step": self.step, "scores": scores, "seconds": self.seconds}


@process.shared_work()
def run(experiment: Experiment, *, origin: Mapping[str, Any] | None = None) -> Outcome:
    """Train as `experiment` says, continuing what its run directory holds.

    Call it on every process, after `process.start`.

    Args:
      experiment: what to do.
      origin: JSON-able: how to start this run again. Kept as `experiment.json`.

    Raises:
      UsageError: before anything compiles, where the parts do not fit together, or not all processes have the
        same.
      InputError: examples or a checkpoint that cannot be used.
      MeshwrightError: the run directory, of which all is done, could not be put at its address.
      DivergedError: a reported loss, or a state that is to be saved, is not finite.
      Interrupted: told to stop; the state is saved.
      PeersError: another process is gone.
    """
    with contextlib.ExitStack() as opened:
        opened.enter_context(process.telling())
        # Before a device is touched: JAX waits for all processes there, and hears of no error.
        process.compare("the settings of the experiment", lambda: settings_of(experiment))
        process.compare_devices()
        experiment = on_hardware(experiment)
        watch = opened.enter_context(_watchdog(experiment))
        mesh, console = mesh_of(experiment), Console(experiment.max_step)
        data = opened.enter_context(contextlib.closing(data_of(experiment, batch_sharding(experiment, mesh))))
        with watch.phase("first_batch"):
            batch = data.peek()
        parts = parts_of(experiment, mesh, batch, data.shapes())
        process.compare("the state and the examples", lambda: arrays_of(experiment, parts, data))
        checkpoints = checkpoints_for(experiment, parts.target)
        checkpoints.check_state = check_finite(experiment.optimizer, checkpoints.settled)
        signals = opened.enter_context(process.signals())
        with naming("run"):
            warn = saying(console, logging.WARNING)
            directory, put = opened.enter_context(_directory.open_directory(experiment, warn))

        def keep_reports() -> None:  # so that a run which goes on from there lacks none
            sync_jsonl(directory / "metrics.jsonl")
            put()

        checkpoints.before_commit = keep_reports
        record = opened.enter_context(Record(directory, experiment, origin))
        rooms = _Rooms(directory, console, data, parts, checkpoints, signals, record, watch)
        outcome = _run_in(rooms, experiment)
        record.summary = outcome.summary()
    return outcome


@dataclass(frozen=True)
class _Rooms:
    """What a run has at hand."""

    directory: Path
    """Where its files are made."""
    console: Console
    data: Batches
    parts: Parts
    checkpoints: Checkpoints
    signals: process.Signals
    record: Record
    watch: Watchdog


def _run_in(rooms: _Rooms, experiment: Experiment) -> Outcome:
    with contextlib.ExitStack() as opened:
        with naming("checkpoints.directory"):
            opened.enter_context(rooms.checkpoints)
        opened.enter_context(_directory.log_file(rooms.directory))
        opened.enter_context(_directory.compiled_programs(experiment))
        return _train(rooms, experiment, opened)


def _train(rooms: _Rooms, experiment: Experiment, opened: contextlib.ExitStack) -> Outcome:
    """Check, restore and train, with what is opened on the way given to `opened`."""
    directory, console, parts, checkpoints = rooms.directory, rooms.console, rooms.parts, rooms.checkpoints
    say = saying(console)
    evaluate = Evaluations(experiment, parts.layout, directory)
    say(heading(experiment, parts.layout.mesh))
    say(parts.layout.explain({"params": parts.target.params}))
    with rooms.watch.phase("restore"):
        given = given_to(experiment, parts.target, checkpoints)
    with rooms.watch.phase("compile"):
        for found in preflight(experiment, parts, evaluate.each):
            say(f"  ✓ {found}")
    with rooms.watch.phase("restore"):
        state = first_state(experiment, parts, given, rooms.data, checkpoints, say)
    del given  # the state has it now, and the first step donates that
    first = int(state.step)
    if first >= experiment.max_step:
        say(f"  already at step {first}: max_step={experiment.max_step} asks for nothing more")
        return Outcome(first, checkpoints.scores(), 0.0, state)
    rooms.record.begin(checkpoints, parts)
    step_time = StepTime(RUN_AHEAD)
    if checkpoints.resumed is not None:
        tell_of_lost_reports(directory, first, say)
    newest = checkpoints.settled
    write = writers(opened, directory, experiment, console, newest, parts, step_time, after=first)
    if process.is_lead():
        opened.enter_context(console)
    evaluate.recall(reported(directory, before=first))
    stop = Stopping(
        rooms.signals, experiment.max_seconds, experiment.log_every, experiment.stop_early, evaluate.history
    )

    def beat(tick: Tick) -> None:
        step_time(tick)
        if process.is_lead():
            console.beat(tick)

    started = time.perf_counter()
    state = _fit(rooms, experiment, state, evaluate, write, beat, stop)
    if stop.interruption:
        raise stop.interruption
    outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
    if outcome.step < experiment.max_step:
        why = "the scores got no better: done" if stop.is_early else "the data ended"
        say(f"  {why} after {outcome.step} of {experiment.max_step} steps")
    return outcome


def _fit(
    rooms: _Rooms,
    experiment: Experiment,
    state: TrainState,
    evaluate: Evaluations,
    write: Writer,
    beat: Callable[[Tick], None],
    stop: Stopping,
) -> TrainState:
    """Train from `state` on, watched and profiled, and return the last state when it is saved."""
    data, checkpoints = rooms.data, rooms.checkpoints
    when = as_when(experiment.checkpoints.when, evaluate.at)
    # The last step is saved in the turn that follows it, with the scores that are found only then.
    when_saved = asked_once(lambda step: step < experiment.max_step and when(step) and not data.is_empty())
    save = checkpoints.saver(when_saved)
    kept = data if experiment.save_input_iterator else None
    watch = rooms.watch
    with contextlib.ExitStack() as opened:
        opened.callback(watch.enter, "end")
        trace = opened.enter_context(_tracer(rooms.directory, experiment))

        def evaluated(tick: Tick, state: TrainState) -> Scores | None:
            # A platform that takes its machine back leaves time to save, and none to evaluate.
            with watch.phase("evaluation"):
                return None if stop.is_ending else evaluate(tick, state)

        def saved(tick: Tick, state: TrainState) -> None:
            # With all scores of the step: some may have been found in the turn before the last.
            with watch.phase("save"):
                save(tick, state, kept, evaluate.at(tick.step))

        def watched(tick: Tick) -> None:
            watch(tick)
            beat(tick)

        state = fit(
            rooms.parts.step,
            state,
            data,
            steps=experiment.max_step,
            evaluate=evaluated,
            log=reports(experiment, tee(write, evaluate.hear), when_saved, data, paused=evaluate.seconds),
            save=lambda tick, state, *_: saved(tick, state),
            trace=trace,
            beat=watched,
            stop=stop,
        )
        with watch.phase("save"):
            checkpoints.wait()
    return state


def _watchdog(experiment: Experiment) -> contextlib.AbstractContextManager[Watchdog]:
    timeout = experiment.watchdog_timeout_seconds
    if timeout is None:
        return contextlib.nullcontext(unwatched())
    return watchdog(timeout, kill=experiment.crash_on_hang)


def _tracer(directory: Path, experiment: Experiment) -> contextlib.AbstractContextManager[Trace]:
    return tracer(
        directory,
        experiment.start_trace_steps,
        num_steps=experiment.num_trace_steps,
        processes=experiment.start_trace_process_indices,
    )
