"""What `Trainer.fit` hands to the loop, and when what happens."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwright import process
from meshwright.checkpoint import Checkpoints, Keep, any_of, last
from meshwright.checkpoint import best as best_of
from meshwright.errors import LayoutError, UsageError
from meshwright.input import as_source, is_indexed
from meshwright.metrics import Console, Writer, logger, tee
from meshwright.train import Step, TrainState, fit, halt_on_divergence, nothing
from meshwright.trainer._epochs import Epochs
from meshwright.trainer._scores import Evaluation
from meshwright.tree import PyTree
from meshwright.when import Tick, When, asked_once, either, every

_FOR_EVER = 2**31 - 1  # the largest step that a state can count


@dataclass(frozen=True)
class Schedule:
    """How long to train, and when to do what."""

    n_epochs: int | None
    max_steps: int | None
    eval_every: int | None
    """Steps; None means at the end of each epoch."""
    save_every: int | None
    """Steps; None means at the end of each epoch."""
    log_every: int

    def __post_init__(self) -> None:
        if self.n_epochs is None and self.max_steps is None:
            raise UsageError("say how long to train: n_epochs, max_steps or both.")
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise UsageError(f"{name}={value}: it must be at least 1.")

    def num_steps(self, examples: Any, batch_size: int) -> int | None:
        """Return the updates in all; None if only the data knows."""
        if self.n_epochs is not None and is_indexed(examples):
            of_epochs = self.n_epochs * (_length(examples) // batch_size)
            return min(of_epochs, self.max_steps or of_epochs)
        return self.max_steps


def batch_sizes(per_device: int | None, whole: int | None, ways: int) -> tuple[int, int]:
    """Return how many examples of a micro-batch a device takes, and how many there are in a step.

    Args:
      ways: into how many parts the mesh and accumulation cut a step's batch.

    Raises:
      UsageError: not one of the two is given.
      LayoutError: the whole does not divide.
    """
    if per_device is not None and whole is None:
        return per_device, per_device * ways
    if whole is None or per_device is not None:
        raise UsageError("give one of per_device_batch_size and global_batch_size.")
    if whole % ways:
        raise LayoutError(
            f"global_batch_size={whole} is no multiple of {ways}, the parts that the mesh and "
            "accumulate_grad_batches cut it into."
        )
    return whole // ways, whole


def at(steps: int | None, data: Epochs) -> When:
    """Return a policy: every so many steps, or at the end of each epoch of `data`."""
    return every(steps) if steps else lambda _: data.at_end_of_epoch()


def keeping(best: Mapping[str, Literal["min", "max"]], every_k_epochs: int | None) -> Keep:
    """Return the policy that keeps the newest, the best by each score, and those after every k epochs."""
    keeps = [last(1), *(best_of(f"eval_{name}", mode) for name, mode in best.items())]
    if every_k_epochs is not None:
        keeps.append(lambda scores: {step for step, of in scores.items() if _is_kth(of, every_k_epochs)})
    return any_of(*keeps)


def train(
    step: Step,
    state: TrainState,
    data: Epochs,
    *,
    num_steps: int | None,
    schedule: Schedule,
    evaluation: Evaluation,
    checkpoints: Checkpoints | None,
    write: Writer,
    batch_size: int,
    show: bool,
) -> TrainState:
    """Return the state after training.

    Raises:
      Interrupted: the process was told to stop; the state is saved, if there are checkpoints.
      DivergedError: a reported loss is not finite; nothing was saved since.
    """
    saves = asked_once(at(schedule.save_every, data))
    halt = halt_on_divergence(checkpoints.latest if checkpoints else lambda: None)
    with process.signals() as signals, _console(num_steps, show) as console:
        state = fit(
            step,
            state,
            data,
            steps=num_steps or _FOR_EVER,
            evaluate=lambda tick, state: None if signals.ending else evaluation(tick, state),
            log=logger(
                tee(write, console, halt),
                either(every(schedule.log_every), saves),
                per_second={"examples": batch_size},
                waited=lambda: data.wait_seconds,
                paused=lambda: evaluation.seconds,
            ),
            save=_with_epoch(checkpoints.saver(saves)) if checkpoints else nothing,
            beat=console.beat,
            stop=lambda tick: signals.stop(tick.step),
        )
        if checkpoints:
            checkpoints.wait()
    if signals.interruption:
        raise signals.interruption
    return state


def _with_epoch(save: Callable[..., None]) -> Callable[..., None]:
    """Return the loop's `save`, which keeps among the scores the number of epochs, where one ended."""

    def with_epoch(tick: Tick, state: PyTree, data: Epochs, scores: Mapping[str, float] | None) -> None:
        ended = {"epoch": float(data.epoch + 1)} if data.at_end_of_epoch() else {}
        save(tick, state, data, {**(scores or {}), **ended})

    return with_epoch


def _is_kth(scores: Mapping[str, float], k: int) -> bool:
    return "epoch" in scores and scores["epoch"] % k == 0


def _length(examples: Any) -> int:
    return len(as_source(examples))


class _Quiet:
    """A console that shows nothing."""

    def __call__(self, step: int, values: Mapping[str, float], /) -> None: ...

    def beat(self, tick: Tick) -> None: ...


@contextlib.contextmanager
def _console(num_steps: int | None, show: bool) -> Iterator[Console | _Quiet]:
    if not show:
        yield _Quiet()
        return
    with Console(num_steps) as console:
        yield console
