"""The schedule of a call of `fit`: its length, when it evaluates and saves, checkpoints kept, batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright import when as due
from meshwright.checkpoint import Keep, any_of, last
from meshwright.checkpoint import best as best_of
from meshwright.engine import InformedWhen
from meshwright.errors import LayoutError, UsageError
from meshwright.trainer._epochs import Epochs
from meshwright.trainer._evaluation import PREFIX, Best
from meshwright.when import When, every

EPOCH = "epoch"
"""The number of epochs that had ended, among the scores of a checkpoint that was saved at the end of one."""


@dataclass(frozen=True)
class Schedule:
    """The numbers given to `fit`, checked.

    Raises:
      UsageError: naming the one that cannot be.
    """

    epochs: int | None
    max_steps: int | None
    eval_when: int | When | None
    save_when: int | When | None
    keep_every_epochs: int | None
    best: Best
    keep: int | Keep | None

    def __post_init__(self) -> None:
        if self.epochs is None and self.max_steps is None:
            raise UsageError("say how long to train: epochs, max_steps or both.")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < 1:
                raise UsageError(f"{name}={value}: it must be at least 1.")
        if not isinstance(self.best, Mapping):
            raise UsageError(
                f"best={self.best!r}: expected scores and their modes, such as "
                "best={'loss': 'min', 'accuracy': 'max'}."
            )
        for name, mode in self.best.items():
            if mode not in ("min", "max"):
                raise UsageError(f"best={{{name!r}: {mode!r}}}: the mode must be 'min' or 'max'.")

    @property
    def end(self) -> str:
        """The user's argument for the length of training, as text."""
        said = {"epochs": self.epochs, "max_steps": self.max_steps}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)

    @property
    def needs_workdir(self) -> bool:
        """True if checkpoints were asked for, so that they need a directory."""
        return bool(self.best or self.save_when or self.keep_every_epochs or self.keep)

    def evaluates(self, data: Epochs) -> When:
        """Return when to evaluate."""
        return _when(self.eval_when, data)

    def saves(self, data: Epochs) -> InformedWhen:
        """Return when to save: as told, and also whenever there may be something to keep."""
        whens = [_when(self.save_when, data)]
        if self.keep_every_epochs is not None:
            whens.append(_when(None, data))
        when = due.any_of(*whens)

        def saved(step: int, scores: Mapping[str, float]) -> bool:
            return when(step) or bool(self.best and scores)

        return saved

    def keeps(self) -> Keep:
        """Return the policy that keeps the newest, the best by each score, and those asked for besides."""
        each = [best_of(PREFIX + name, mode, without_metric="drop") for name, mode in self.best.items()]
        if self.keep_every_epochs is not None:
            each.append(_kth_epochs(self.keep_every_epochs))
        return any_of(last(1), *each, *([self.keep] if self.keep else []))

    def num_steps(self, done: int, data: Epochs, before: int) -> int | None:
        """Return how many updates there are in all, `done` of which are made; None if only the data knows.

        `before` of them were made by earlier calls.
        """
        left, last = data.num_left(), None if self.max_steps is None else before + self.max_steps
        if left is None:
            return last
        return min(done + left, last or done + left)


def batch_sizes(per_device: int | None, whole: int | None, ways: int) -> tuple[int, int]:
    """Return how many examples of a micro-batch a device takes, and how many there are in a step.

    Args:
      ways: into how many parts the mesh and accumulation cut a step's batch.

    Raises:
      UsageError: not one of the two is given.
      LayoutError: the whole does not divide.
    """
    if (per_device is None) == (whole is None):
        raise UsageError("give one of per_device_batch_size and batch_size.")
    size = whole if per_device is None else per_device * ways
    if size is None or size < 1:
        raise UsageError(f"a batch of {size} examples: it must have at least 1.")
    if size % ways:
        raise LayoutError(
            f"batch_size={size} is no multiple of {ways}, the parts that the mesh and "
            "microbatches cut it into."
        )
    return size // ways, size


def _when(every_so_often: int | When | None, data: Epochs) -> When:
    """Return a policy: every so many steps, as a policy says, or at the end of each epoch of `data`."""
    if every_so_often is None:
        return lambda step: data.at_end_of_epoch()
    return every(every_so_often) if isinstance(every_so_often, int) else every_so_often


def _kth_epochs(k: int) -> Keep:
    def keep(scores: Mapping[int, Mapping[str, float]]) -> set[int]:
        return {step for step, found in scores.items() if EPOCH in found and found[EPOCH] % k == 0}

    return keep
