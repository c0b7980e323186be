"""What `Trainer.fit` hands to the loop."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax

from meshwright import process
from meshwright.checkpoint import Checkpoints
from meshwright.deployer import Deployer
from meshwright.metrics import Console, Values, Writer, logger, tee
from meshwright.program import count_flops, with_known_utilisation, with_utilisation
from meshwright.train import Step, TrainState, fit, halt_on_divergence, nothing, num_updates
from meshwright.trainer._epochs import Epochs
from meshwright.trainer._schedule import EPOCH, Schedule
from meshwright.trainer._scores import Evaluation, Scores
from meshwright.when import Tick, When, asked_once, either, every

_FOR_EVER = 2**31 - 1  # the largest step that a state can count

Save = Callable[[Tick, Any, Any, Mapping[str, float] | None], None]


@dataclass(frozen=True)
class Loop:
    """The parts of one `fit`."""

    step: Step
    data: Epochs
    schedule: Schedule
    evaluation: Evaluation
    checkpoints: Checkpoints | None
    deployer: Deployer
    lr_schedule: optax.Schedule | None
    batch_size: int

    @process.shared_work()
    def run(self, state: TrainState, reached: Callable[[TrainState], None]) -> None:
        """Train from `state` on, telling `reached` of the state after each step.

        Raises:
          Interrupted: the process was told to stop; the state is saved, if there are checkpoints.
          DivergedError: a reported loss, or a state that is to be saved, is not finite.
          PeersError: another process is gone.
        """
        if self.checkpoints:
            self.checkpoints.before_commit = self.deployer.keep_metrics
        saves = self._saves()
        total = self.schedule.num_steps(int(state.step), self.data)
        console = Console(total) if self.deployer.verbose else None
        newest = state
        with process.signals() as signals, console or contextlib.nullcontext():

            def evaluate(tick: Tick, state: TrainState) -> Scores | None:
                nonlocal newest
                newest = state
                reached(state)
                # A platform that takes its machine back leaves time to save, and none to evaluate.
                return None if signals.ending else self.evaluation(tick, state)

            fit(
                self.step,
                state,
                self.data,
                steps=self.schedule.max_steps or _FOR_EVER,
                evaluate=evaluate,
                log=logger(
                    with_learning_rate(self._writer(console), self.lr_schedule, lambda: num_updates(newest)),
                    # A report before each save: a crash then loses whole reports, which are made again.
                    either(every(self.schedule.log_every), saves),
                    per_second={"examples": self.batch_size},
                    waited=lambda: self.data.wait_seconds,
                    paused=lambda: self.evaluation.seconds,
                ),
                save=_saver(self.checkpoints, saves, self.evaluation) if self.checkpoints else nothing,
                beat=console.beat if console else nothing,
                stop=lambda tick: signals.stop(tick.step),
            )
            if self.checkpoints:
                self.checkpoints.wait()
        if signals.interruption:
            if not self.checkpoints:
                signals.interruption.add_note("Nothing is saved, as there is no Deployer(workdir=...).")
            raise signals.interruption

    def _saves(self) -> When:
        """Return when to save: the last step in the turn that follows it, with scores found only then."""
        due = self.schedule.saves(self.data, self.evaluation.was_at)
        return asked_once(lambda step: due(step) and not self.schedule.is_done(step, self.data))

    def _writer(self, console: Console | None) -> Writer:
        """Return the writer of reports: to files, to the screen, and for the end of a run that diverges."""
        halt = halt_on_divergence(self.checkpoints.settled if self.checkpoints else lambda: None)
        if self.step.num_shapes > 1:  # of what so many steps compute nobody knows
            return tee(self.deployer.write, *([console] if console else []), halt)
        used = count_flops(self.step.jaxpr), list(self.deployer.mesh.devices.flat)
        files = with_utilisation(self.deployer.write, *used)
        screens = [with_known_utilisation(console, *used)] if console else []
        return tee(files, *screens, halt)


def with_learning_rate(write: Writer, schedule: optax.Schedule | None, updates: Callable[[], int]) -> Writer:
    """Return `write`, told besides by which learning rate the last of so many updates was made."""
    if schedule is None:
        return write

    def written(step: int, values: Values, /) -> None:
        write(step, {**values, "learning_rate": np.asarray(schedule(max(updates() - 1, 0))).item()})

    return written


def _saver(checkpoints: Checkpoints, saves: When, evaluation: Evaluation) -> Save:
    """Return the loop's `save`, which keeps the scores of its step, and the epoch where one ended."""
    save = checkpoints.saver(saves)

    def with_scores(tick: Tick, state: Any, data: Any, _: Mapping[str, float] | None) -> None:
        ended = {EPOCH: float(data.epoch + 1)} if data.at_end_of_epoch() else {}
        save(tick, state, data, {**evaluation.at(tick.step), **ended})

    return with_scores
