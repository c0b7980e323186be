"""A call of `fit`: it makes the parts that the engine runs from the arguments of the call."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import jax

from meshwright.data._internal import facts_of, is_indexed
from meshwright.engine._evaluation._batches import Scores
from meshwright.engine._evaluation._parts import evaluation_facts, evaluation_parts
from meshwright.engine._evaluations import EvaluationPart
from meshwright.engine._outcome import Outcome
from meshwright.engine._run import run_engine
from meshwright.engine._settings import Settings
from meshwright.engine._trainer._arguments import Fit
from meshwright.engine._trainer._epochs import EPOCH, Epochs, FinishedCalls, Position, digest_of
from meshwright.engine._trainer._recipe import Recipe
from meshwright.engine._trainer._start import check_schedule
from meshwright.engine._training import Training, global_batch
from meshwright.training._internal import (
    LAST_STEP,
    RunningWatchdog,
    TrainState,
    check_dtypes,
    check_num_steps,
    wider_than,
)


@dataclass
class Progress:
    """The progress of a trainer between its calls of `fit`."""

    state: TrainState | None = None
    """The state after the last step; None before there is one."""
    position: Position | None = None
    """The position in the data from which the next call continues; None means the beginning."""
    finished: FinishedCalls = field(default_factory=FinishedCalls)
    """The record of the finished calls, including those of earlier processes."""
    num_calls: int = 0
    """The number of calls that this process has finished."""
    digest: str = ""
    """The digest of the examples of these calls."""
    first_step: int = 0
    """The number of updates before the first call of this process. Finished rounds made them."""
    read: Callable[[TrainState], TrainState] | None = None
    """Returns the state of a finished round. Its argument is the state's structure, as structs."""


class Call:
    """A call of `fit`: its batches, the parts that the engine runs, and the record of its end."""

    def __init__(
        self, recipe: Recipe, progress: Progress, arguments: Fit, first_state: Callable[[], TrainState]
    ):
        self._recipe, self._progress, self._arguments = recipe, progress, arguments
        self._first_state = first_state
        layout, number, state = recipe.deployer.layout(), progress.num_calls + 1, progress.state
        first_step = progress.first_step if number == 1 or state is None else int(state.step)
        self._batch_size = arguments.whole_batch_size(layout.batch_ways * recipe.accumulate)
        self._data = Epochs(
            arguments.train_examples,
            self._batch_size,
            layout.batch_sharding,
            collate=recipe.collate,
            seed=recipe.deployer.seed,
            shuffle=arguments.shuffle,
            num_epochs=arguments.epochs,
            call=number,
            first_step=first_step,
            finished=progress.finished,
        )

    def run(self, directory: str | None, described: Callable[[], str]) -> Scores:
        """Train, and return the last scores. Collective."""
        recipe, settings = self._recipe, self._settings(directory, described)
        kept_open = recipe.deployer.loops.open_run(directory)
        with contextlib.closing(self._data):
            outcome = run_engine(settings, lambda _, watch: self._training(watch), kept_open)
        self._progress.state = outcome.state
        return self._finish(outcome)

    def _settings(self, directory: str | None, described: Callable[[], str]) -> Settings:
        recipe, arguments, deployer = self._recipe, self._arguments, self._recipe.deployer
        save, is_saved = arguments.save, directory is not None and not deployer.loops.is_in_round
        if save.when is None:
            save = replace(save, when=self._at_end_of_epoch)
        return Settings(
            place=directory,
            described=described,
            save=save if is_saved else None,
            marks=self._marks,
            tries_saving=True,
            logging=replace(arguments.logging, trackers=(deployer.track, *arguments.logging.trackers)),
            per_second={"examples": self._batch_size},
            learning_rate=recipe.learning_rate,
            stop=arguments.stop,
            profile=arguments.profile,
            watchdog=arguments.watchdog,
            compile=recipe.compiler.settings,
            is_strict=arguments.strict,
            from_step=arguments.from_step,
            is_shown=deployer.verbose,
            say=lambda text: deployer.log_info(text.strip()),
            detail=deployer.log_detail,
        )

    def _training(self, watch: RunningWatchdog) -> Training:
        recipe, arguments, data = self._recipe, self._arguments, self._data
        with watch.phase("first_batch"):
            rows = data.peek()
        batch = global_batch(rows, self._batch_size)
        recipe.lay_out(batch)
        check_dtypes(recipe.compute_dtype, recipe.target.params)
        check_schedule(recipe.lr_schedule, recipe.accumulate, recipe.target)
        wider = wider_than(recipe.compute_dtype, batch)
        if recipe.train_step is not None and recipe.compute_dtype is not None:
            wider = "has no effect on a train_step, which casts the parameters itself"
        began_from: list[str] = []
        return Training(
            layout=recipe.layout,
            target=recipe.target,
            optimizer=recipe.tx,
            batch=batch,
            first_rows=data.peek,
            other_batches=[global_batch(rows, self._batch_size) for rows in data.shapes()],
            step=recipe.step(arguments.logging.norms),
            data=data,
            last_step=lambda: self._last_step() or LAST_STEP,
            first_step=lambda: data.first_step,
            num_steps=self._num_steps,
            length=arguments.length,
            first_state=partial(self._begin, began_from),
            began_from=began_from,
            evaluations=self._evaluations(),
            facts=self._facts,
            notes=[*recipe.compiler.summary()],
            remarks=[f"compute_dtype: {wider}"] if wider else [],
            has_dropout=recipe.model is not None and recipe.model.has_dropout,
            reached=self._note,
            is_continued=self._is_continued(),
        )

    def _at_end_of_epoch(self, step: int) -> bool:
        """The policy of evaluations and checkpoints for which the user gives none."""
        return self._data.at_end_of_epoch()

    def _marks(self) -> dict[str, float]:
        """Return the number of the epoch that ends with this step, for the scores of its checkpoint."""
        return {EPOCH: float(self._data.epoch + 1)} if self._data.at_end_of_epoch() else {}

    def _last_step(self) -> int | None:
        """Return the step after which `max_steps` ends the call."""
        max_steps = self._arguments.max_steps
        return None if max_steps is None else self._data.first_step + max_steps

    def _num_steps(self, num_done: int) -> int | None:
        """Return the number of updates of all calls, or None if it depends on the data."""
        num_left, last = self._data.num_left(), self._last_step()
        total = last if num_left is None else min(num_done + num_left, last or num_done + num_left)
        check_num_steps("the number of updates of all calls", total or 0)
        return total

    def _evaluations(self) -> list[EvaluationPart]:
        recipe, arguments = self._recipe, self._arguments
        context = recipe.context(self._batch_size // recipe.accumulate, self._at_end_of_epoch)
        parts = evaluation_parts(arguments.evaluations, arguments.samples, context)
        return [replace(part, at_end=partial(self._is_due_at_end, part)) for part in parts]

    def _is_due_at_end(self, part: EvaluationPart) -> bool:
        """Return False for a call that was finished before the program restarted."""
        return self._data.saved is None and part.at_end()

    def _begin(self, began_from: list[str], newest: int | None) -> Callable[[], TrainState]:
        """Return a function that returns the state in memory, or else the first one, and sets the data."""
        recipe, progress = self._recipe, self._progress
        if newest is None and progress.state is None and progress.read is None:
            began_from += recipe.start.origin()
        if newest is not None:
            progress.state = None  # otherwise there would be two states in memory
            if unused := recipe.start.give_way(newest):
                recipe.deployer.log_info(unused)

        def begun() -> TrainState:
            if progress.position is not None:
                self._data.set_state(progress.position)
            return self._first_state()

        return begun

    def _is_continued(self) -> bool:
        """Return True if the state in memory is the state after a finished call.

        After an error in a call its state may be incomplete. Then the next call continues from the newest
        checkpoint.
        """
        progress = self._progress
        is_cut_off = (progress.position or {}).get("call") == self._data.call
        return progress.state is not None and progress.num_calls > 0 and not is_cut_off

    def _note(self, state: TrainState) -> None:
        """Note the state after a step, and the position in the data."""
        self._progress.state, self._progress.position = state, self._data.get_state()

    def _facts(self) -> dict[str, str]:
        """Return the facts about the examples, by name, that must be the same on all processes."""
        if jax.process_count() == 1:
            return {}
        read: Mapping[str, Mapping[str, str]] = {
            "train_examples": self._data.facts(),
            **evaluation_facts(self._arguments.evaluations),
        }
        return {f"{where}: {name}": fact for where, facts in read.items() for name, fact in facts.items()}

    def _finish(self, outcome: Outcome) -> Scores:
        """Record the call as finished, log it if it was finished before, and return its scores."""
        progress, data, scores = self._progress, self._data, dict(outcome.scores)
        record = {"fingerprint": self._fingerprint(), "asked": self._arguments.length, "step": outcome.step}
        progress.num_calls += 1
        progress.digest = digest_of(progress.digest, record["fingerprint"])
        progress.position = data.saved
        if data.saved is None:
            progress.finished = data.finished.with_call(data.call, {**record, "scores": scores})
        else:
            progress.finished = data.finished
            message, scores = data.finished.answer(data.call, record, progress.digest)
            self._recipe.deployer.log_info(f"✓ {message}")
        return {name: value for name, value in scores.items() if name != EPOCH}

    def _fingerprint(self) -> str:
        """Return a digest of a call's data: the facts of its examples, the batch size and `shuffle`."""
        examples, shuffle = self._arguments.train_examples, self._arguments.shuffle
        facts = facts_of(examples) if is_indexed(examples) else {}
        text = repr((sorted(facts.items()), self._batch_size, shuffle))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
