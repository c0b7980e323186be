"""The schedule of a call of `fit`: its length, when it evaluates and saves, checkpoints kept, batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.checkpoints._internal import Keep, keep_any, last
from meshwright.checkpoints._internal import best as best_of
from meshwright.engine._policies import InformedWhen
from meshwright.engine._trainer._epochs import Epochs
from meshwright.engine._trainer._evaluation import PREFIX, Best
from meshwright.errors import LayoutError, UsageError
from meshwright.processes._internal import When, every
from meshwright.processes._internal import when as due
from meshwright.training._internal import check_num_steps

EPOCH = "epoch"
"""The name of the number of finished epochs, in the scores of a checkpoint saved at the end of an epoch."""


@dataclass(frozen=True)
class Schedule:
    """The arguments of `fit` that determine its length, its evaluations and its checkpoints."""

    epochs: int | None
    """The number of epochs of the call."""
    max_steps: int | None
    """The largest number of updates in the call."""
    eval_when: int | When | None
    """The number of steps between evaluations, or a policy. None means after each epoch."""
    save_when: int | When | None
    """The number of steps between checkpoints, or a policy. None means after each epoch."""
    keep_every_epochs: int | None
    """The number of epochs between checkpoints that are always kept."""
    best: Best
    """The scores by which the best checkpoint is kept, with their modes."""
    keep: int | Keep | None
    """The number of newest checkpoints to keep besides these, or a policy."""

    def __post_init__(self) -> None:
        if self.epochs is None and self.max_steps is None:
            raise UsageError("the length of training is missing: give epochs, max_steps or both.")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise UsageError(f"{name}={value}: it must be at least 1.")
        check_num_steps("max_steps", self.max_steps or 0)
        if not isinstance(self.best, Mapping):
            raise UsageError(
                f"best={self.best!r}: it must be a mapping from scores to modes, such as "
                "best={'loss': 'min', 'accuracy': 'max'}."
            )
        for name, mode in self.best.items():
            if mode not in ("min", "max"):
                raise UsageError(f"best={{{name!r}: {mode!r}}}: the mode must be 'min' or 'max'.")

    @property
    def end(self) -> str:
        """The user's arguments for the length of training, as text."""
        said = {"epochs": self.epochs, "max_steps": self.max_steps}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)

    @property
    def needs_workdir(self) -> bool:
        """True if the user asked for checkpoints, which need a directory."""
        return bool(self.best or self.save_when or self.keep_every_epochs or self.keep)

    def evaluates(self, data: Epochs) -> When:
        """Return the policy that says after which steps to evaluate."""
        return _when(self.eval_when, data)

    def saves(self, data: Epochs) -> InformedWhen:
        """Return the policy that says after which steps to save.

        Besides `save_when` a state is saved when it may be the best one or belongs to an epoch to keep.
        """
        whens = [_when(self.save_when, data)]
        if self.keep_every_epochs is not None:
            whens.append(_when(None, data))
        when = due.any_of(*whens)

        def saved(step: int, scores: Mapping[str, float]) -> bool:
            return when(step) or bool(self.best and scores)

        return saved

    def keeps(self) -> Keep:
        """Return the policy that keeps the newest checkpoint, the best by each score, and those to keep."""
        each = [best_of(PREFIX + name, mode, without_metric="drop") for name, mode in self.best.items()]
        if self.keep_every_epochs is not None:
            each.append(_kth_epochs(self.keep_every_epochs))
        return keep_any(last(1), *each, *([self.keep] if self.keep else []))

    def num_steps(self, done: int, data: Epochs, before: int) -> int | None:
        """Return the total number of updates, or None if it depends on the data."""
        left, last = data.num_left(), None if self.max_steps is None else before + self.max_steps
        whole = last if left is None else min(done + left, last or done + left)
        check_num_steps("the number of updates of all calls", whole or 0)
        return whole


def batch_sizes(per_device: int | None, whole: int | None, ways: int) -> tuple[int, int]:
    """Return the number of examples in one part of a batch, and the number in the whole batch."""
    if (per_device is None) == (whole is None):
        raise UsageError("give one of per_device_batch_size and batch_size.")
    size = whole if per_device is None else per_device * ways
    if size is None or size < 1:
        raise UsageError(f"a batch of {size} examples: it must have at least 1.")
    if size % ways:
        raise LayoutError(
            f"batch_size={size} is not a multiple of {ways}, the number of parts into which the mesh and "
            "microbatches split a batch."
        )
    return size // ways, size


def _when(every_so_often: int | When | None, data: Epochs) -> When:
    """Return a policy from a number of steps or a policy; None means the end of each epoch of `data`."""
    if every_so_often is None:
        return lambda step: data.at_end_of_epoch()
    return every(every_so_often) if isinstance(every_so_often, int) else every_so_often


def _kth_epochs(k: int) -> Keep:
    def keep(scores: Mapping[int, Mapping[str, float]]) -> set[int]:
        return {step for step, found in scores.items() if EPOCH in found and found[EPOCH] % k == 0}

    return keep
