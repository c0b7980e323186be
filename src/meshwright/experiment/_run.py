"""From a description to a run: each room is opened, checked, and handed to the loop."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.experiment import _directory
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
from meshwright.experiment._reports import heading, reported, reports, saying, writers
from meshwright.experiment._save import checkpoints_for
from meshwright.experiment._stopping import Stopping
from meshwright.input import Batches
from meshwright.metrics import Console, StepTime, Writer, json_number, tee
from meshwright.profiling import Trace, tracer
from meshwright.train import RUN_AHEAD, TrainState, fit, nothing, watchdog
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


def run(experiment: Experiment, *, origin: Mapping[str, Any] | None = None) -> Outcome:
    """Train as `experiment` says, continuing what its run directory holds.

    Call it on every process, after `process.start`.

    Args:
      experiment: what to do.
      origin: JSON-able: how to start this run again. Kept as `experiment.json`.

    Raises:
      UsageError: before anything compiles, where the parts do not fit together.
      InputError: examples or a checkpoint that cannot be used.
      DivergedError: a reported loss is not finite; nothing was saved since.
      Interrupted: told to stop; the state is saved.
    """
    experiment = on_hardware(experiment)
    mesh = mesh_of(experiment)
    directory = Path(experiment.run)
    with Record(experiment, origin) as record, contextlib.ExitStack() as opened:
        data = opened.enter_context(contextlib.closing(data_of(experiment, batch_sharding(experiment, mesh))))
        parts = parts_of(experiment, mesh, data.peek())
        checkpoints = checkpoints_for(experiment, parts.target)
        _directory.prepare(directory)
        if experiment.checkpoints.directory is None:
            _directory.check_shared(directory)
        signals = opened.enter_context(process.signals())
        with naming("checkpoints.directory"):
            opened.enter_context(checkpoints)
        opened.enter_context(_directory.log_file(directory))
        opened.enter_context(_directory.compiled_programs(directory, experiment.compile_cache))
        outcome = _train(experiment, record, parts, data, checkpoints, signals, opened)
        record.summary = outcome.summary()
    return outcome


def _train(
    experiment: Experiment,
    record: Record,
    parts: Parts,
    data: Batches,
    checkpoints: Checkpoints,
    signals: process.Signals,
    opened: contextlib.ExitStack,
) -> Outcome:
    """Check, restore and train, with what is opened on the way given to `opened`."""
    console = Console(experiment.max_step)
    say = saying(console)
    evaluate = Evaluations(experiment, parts.layout)
    say(heading(experiment, parts.layout.mesh))
    say(parts.layout.explain({"params": parts.target.params}))
    given = given_to(experiment, parts.target, checkpoints)
    for found in preflight(experiment, parts, evaluate.each):
        say(f"  ✓ {found}")
    state = first_state(experiment, parts, given, data, checkpoints, say)
    del given  # the state has it now, and the first step donates that
    first = int(state.step)
    if first >= experiment.max_step:
        say(f"  already at step {first}: max_step={experiment.max_step} asks for nothing more")
        return Outcome(first, checkpoints.scores(), 0.0, state)
    record.begin(checkpoints, parts)
    step_time = StepTime(RUN_AHEAD)
    write = writers(opened, experiment, console, checkpoints.latest, parts, step_time, after=first)
    if process.is_lead():
        opened.enter_context(console)
    evaluate.recall(reported(experiment, before=first))
    stop = Stopping(
        signals, experiment.max_seconds, experiment.log_every, experiment.stop_early, evaluate.history
    )

    def beat(tick: Tick) -> None:
        step_time(tick)
        if process.is_lead():
            console.beat(tick)

    started = time.perf_counter()
    state = _fit(experiment, parts, state, data, checkpoints, evaluate, write, beat, stop)
    if stop.interruption:
        raise stop.interruption
    outcome = Outcome(int(state.step), evaluate.newest, time.perf_counter() - started, state)
    if outcome.step < experiment.max_step:
        why = "the scores got no better: done" if stop.is_early else "the data ended"
        say(f"  {why} after {outcome.step} of {experiment.max_step} steps")
    return outcome


def _fit(
    experiment: Experiment,
    parts: Parts,
    state: TrainState,
    data: Batches,
    checkpoints: Checkpoints,
    evaluate: Evaluations,
    write: Writer,
    beat: Callable[[Tick], None],
    stop: Stopping,
) -> TrainState:
    """Train from `state` on, watched and profiled, and return the last state when it is saved."""
    when = as_when(experiment.checkpoints.when, evaluate.at)
    # The last step is saved in the turn that follows it, with the scores that are found only then.
    when_saved = asked_once(lambda step: step < experiment.max_step and when(step))
    save = checkpoints.saver(when_saved)
    kept = data if experiment.save_input_iterator else None
    with contextlib.ExitStack() as opened:
        watch, pause = _watchdog(experiment, opened)
        trace = opened.enter_context(_tracer(experiment))

        def evaluated(tick: Tick, state: TrainState) -> Scores | None:
            # A platform that takes its machine back leaves time to save, and none to evaluate.
            with pause():
                return None if stop.is_ending else evaluate(tick, state)

        def watched(tick: Tick) -> None:
            watch(tick)
            beat(tick)

        state = fit(
            parts.step,
            state,
            data,
            steps=experiment.max_step,
            evaluate=evaluated,
            log=reports(experiment, tee(write, evaluate.hear), when_saved, data, paused=evaluate.seconds),
            # With all scores of the step: some may have been found in the turn before the last.
            save=lambda tick, state, *_: save(tick, state, kept, evaluate.at(tick.step)),
            trace=trace,
            beat=watched,
            stop=stop,
        )
        with pause():
            checkpoints.wait()
    return state


def _watchdog(
    experiment: Experiment, opened: contextlib.ExitStack
) -> tuple[Callable[[Tick], None], Callable[[], contextlib.AbstractContextManager[None]]]:
    """Return the watchdog's `beat`, and what opens a time that it does not count."""
    timeout = experiment.watchdog_timeout_seconds
    if timeout is None:
        return nothing, contextlib.nullcontext
    watching = opened.enter_context(watchdog(timeout, kill=experiment.crash_on_hang))
    return watching, watching.paused


def _tracer(experiment: Experiment) -> contextlib.AbstractContextManager[Trace]:
    return tracer(
        experiment.run,
        experiment.start_trace_steps,
        num_steps=experiment.num_trace_steps,
        processes=experiment.start_trace_process_indices,
    )
