"""A call of `fit`: it makes the parts that the engine runs from the arguments of the call."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from meshwright.data._internal import facts_of, is_indexed
from meshwright.engine._deployer._deployer import Deployer
from meshwright.engine._evaluation._means import Scores
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._run import run_engine
from meshwright.engine._settings import Save, Settings
from meshwright.engine._trainer._arguments import Call
from meshwright.engine._trainer._calls import CallData, Finished, Position, digest_of
from meshwright.engine._trainer._epochs import Epochs
from meshwright.engine._trainer._evaluation import PREFIX
from meshwright.engine._trainer._recipe import Recipe
from meshwright.engine._trainer._schedule import EPOCH
from meshwright.engine._trainer._start import check_schedule
from meshwright.engine._training import Training, global_batch
from meshwright.processes._internal import When
from meshwright.training._internal import LAST_STEP, TrainState, check_dtypes, frozen_names, wider_than


@dataclass
class Progress:
    """The progress of a trainer between its calls of `fit`."""

    state: TrainState | None = None
    """The state after the last step; None before there is one."""
    position: Position | None = None
    """The position in the data from which the next call continues; None means the beginning."""
    finished: Finished = field(default_factory=Finished)
    """The record of the finished calls, including those of earlier processes."""
    num_calls: int = 0
    """The number of calls that this process has finished."""
    digest: str = ""
    """The digest of the examples of these calls."""
    first_step: int = 0
    """The number of updates before the first call of this process. Finished rounds made them."""
    read: Callable[[TrainState], TrainState] | None = None
    """Returns the state of a finished round. Its argument is the state's structure, as structs."""


def fit(
    recipe: Recipe,
    progress: Progress,
    call: Call,
    first_state: Callable[[], TrainState],
    place: str | None,
    described: Callable[[], str],
) -> Scores:
    """Run one call of `fit`, and return its last scores, named without the prefix `eval/`. Collective."""
    number = progress.num_calls + 1
    with contextlib.ExitStack() as stack:
        first_step = _first_step(progress, number)
        data = stack.enter_context(contextlib.closing(_epochs(recipe, call, first_step)))
        calls = CallData(data, number, first_step, progress.finished)
        make = partial(_training_of, recipe, progress, call, calls, first_state)
        settings = _settings_for(recipe, call, calls, place, described)
        held = recipe.deployer.loops.held(place)
        outcome = run_engine(settings, recipe.tx, lambda _, watch: make(watch), held)
        progress.state = outcome.state
        return _finish(recipe.deployer, progress, call, calls, outcome.step, dict(outcome.scores))


def _epochs(recipe: Recipe, call: Call, first_step: int) -> Epochs:
    deployer = recipe.deployer
    return Epochs(
        call.examples,
        call.batch_size,
        deployer.layout().batch_sharding,
        collate=recipe.collate,
        seed=deployer.seed,
        shuffle=call.shuffle,
        num_epochs=call.schedule.epochs,
        first_step=first_step,
    )


def _first_step(progress: Progress, number: int) -> int:
    return progress.first_step if number == 1 or progress.state is None else int(progress.state.step)


def _settings_for(
    recipe: Recipe, call: Call, calls: CallData, place: str | None, described: Callable[[], str]
) -> Settings:
    deployer, schedule, data = recipe.deployer, call.schedule, calls.epochs
    ended = lambda: {EPOCH: float(data.epoch + 1)} if data.at_end_of_epoch() else {}  # noqa: E731
    save = Save(when=schedule.saves(data), keep=schedule.keeps(), memory=call.memory)
    is_saved = place is not None and not deployer.loops.is_in_round
    return Settings(
        place=place,
        described=described,
        save=save if is_saved else None,
        marks=ended,
        tries_saving=True,
        keep_field="best",
        logging=replace(call.logging, trackers=(deployer.track, *call.logging.trackers)),
        per_second={"examples": call.batch_size},
        learning_rate=_learning_rate(recipe),
        stop=call.stop,
        profile=call.profile,
        watchdog=call.watchdog,
        compile=recipe.compiler.settings,
        is_strict=call.strict,
        from_step=call.from_step,
        is_shown=deployer.verbose,
        say=lambda text: deployer.log_info(text.strip()),
        detail=deployer.log_detail,
    )


def _learning_rate(recipe: Recipe) -> Callable[[int], float] | None:
    schedule = recipe.lr_schedule
    if schedule is None:
        return None
    return lambda updates: np.asarray(schedule(updates)).item()


def _training_of(
    recipe: Recipe,
    progress: Progress,
    call: Call,
    calls: CallData,
    first_state: Callable[[], TrainState],
    watch: Any,
) -> Training:
    with watch.phase("first_batch"):
        rows = calls.epochs.peek()
    batch = global_batch(rows, call.batch_size)
    recipe.lay_out(batch)
    check_dtypes(recipe.compute_dtype, recipe.target.params)
    check_schedule(recipe.lr_schedule, recipe.accumulate, recipe.target)
    wider = wider_than(recipe.compute_dtype, batch)
    if recipe.train_step is not None and recipe.compute_dtype is not None:
        wider = "has no effect on a train_step, which casts the parameters itself"
    schedule = call.schedule
    began_from: list[str] = []

    def reached(state: TrainState) -> None:
        progress.state, progress.position = state, calls.get_state()

    return Training(
        layout=recipe.layout,
        target=recipe.target,
        batch=batch,
        first_rows=calls.epochs.peek,
        other_batches=[global_batch(each, call.batch_size) for each in calls.epochs.shapes()],
        step=recipe.step(call.logging.norms),
        data=calls,
        last_step=lambda: calls.first_step + schedule.max_steps if schedule.max_steps else LAST_STEP,
        first_step=lambda: calls.first_step,
        num_steps=lambda done: schedule.num_steps(done, calls.epochs, calls.first_step),
        asked=schedule.end,
        first_state=partial(_kept, recipe, progress, calls, first_state, began_from),
        began_from=began_from,
        evaluations=_evaluations(recipe, call, calls),
        facts=partial(_facts, calls, call.evaluated.examples),
        told=[*recipe.compiler.told()],
        remarks=[f"compute_dtype: {wider}"] if wider else [],
        frozen=frozen_names(recipe.tx, recipe.target.params, recipe.target.model_state),
        has_dropout=recipe.model is not None and recipe.model.has_dropout,
        reached=reached,
        is_continued=_is_continued(progress, calls),
    )


def _kept(
    recipe: Recipe,
    progress: Progress,
    calls: CallData,
    first_state: Callable[[], TrainState],
    began_from: list[str],
    newest: int | None,
) -> Callable[[], TrainState]:
    """Return a function that returns the state in memory or else the first one, and moves the data to it."""
    if newest is None and progress.state is None and progress.read is None:
        began_from += recipe.start.origin()
    if newest is not None:
        progress.state = None  # otherwise there would be two states in memory
        if unused := recipe.start.give_way(newest):
            recipe.deployer.log_info(unused)

    def kept() -> TrainState:
        if progress.position is not None:
            calls.set_state(progress.position)
        return first_state()

    return kept


def _is_continued(progress: Progress, calls: CallData) -> bool:
    """Return True if the state in memory is the state after a finished call.

    After an error in a call its state may be incomplete. Then the next call continues from the newest
    checkpoint.
    """
    is_cut_off = (progress.position or {}).get("call") == calls.number
    return progress.state is not None and progress.num_calls > 0 and not is_cut_off


def _evaluations(recipe: Recipe, call: Call, calls: CallData) -> Sequence[EvaluationPart]:
    due = call.schedule.evaluates(calls.epochs)

    def is_new() -> bool:  # False for a call that was finished before the program restarted
        return calls.saved is None

    when: When = lambda step: is_new() and due(step)  # noqa: E731
    others = call.others.parts(recipe, when, is_new)
    if call.evaluated.examples is None:
        return others
    scoring = call.evaluated.scoring()
    return [EvaluationPart("eval", PREFIX, "eval_examples", when, scoring, is_new), *others]


def _facts(calls: CallData, eval_examples: Any) -> dict[str, str]:
    """Return the facts about the examples, by name, that must be the same on all processes."""
    if jax.process_count() == 1:
        return {}
    evaluated = facts_of(eval_examples) if is_indexed(eval_examples) else {}
    read = {"train_examples": calls.facts(), "eval_examples": evaluated}
    return {f"{place}: {name}": said for place, facts in read.items() for name, said in facts.items()}


def _finish(
    deployer: Deployer, progress: Progress, call: Call, calls: CallData, step: int, scores: Scores
) -> Scores:
    """Record the call as finished, log it if it was finished before, and return its scores without prefix."""
    about = {"fingerprint": _fingerprint(call), "asked": call.schedule.end, "step": step}
    progress.num_calls += 1
    progress.digest = digest_of(progress.digest, about["fingerprint"])
    progress.position = calls.saved
    if calls.saved is None:
        progress.finished = calls.finished.then(calls.number, {**about, "scores": scores})
    else:
        progress.finished = calls.finished
        said, scores = calls.finished.told(calls.number, about, progress.digest)
        deployer.log_info(f"✓ {said}")
    return {name.removeprefix(PREFIX): value for name, value in scores.items() if name != EPOCH}


def _fingerprint(call: Call) -> str:
    """Return a digest of a call's data: the facts of its examples, the batch size and `shuffle`."""
    facts = facts_of(call.examples) if is_indexed(call.examples) else {}
    said = repr((sorted(facts.items()), call.batch_size, call.shuffle))
    return hashlib.sha256(said.encode()).hexdigest()[:12]
