"""The arguments of a call of `fit`, checked before anything is read or compiled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.engine._evaluation._description import Evaluation, EvaluationFunction, check_names
from meshwright.engine._policies import WhenEvaluated
from meshwright.engine._samples import Sampler, check_sampler
from meshwright.engine._settings import Logging, Profile, Save, Watchdog
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_least, check_types
from meshwright.errors import LayoutError, UsageError, listed
from meshwright.training._internal import check_num_steps

USUAL_SAVE = Save(keep=1)
_OF_CALL = ("train_examples", "per_device_batch_size", "epochs", "batch_size", "max_steps", "shuffle")
_AS_IN_EXPERIMENT = ("evaluations", "samples", "save", "logging", "stop", "profile", "watchdog")


@dataclass(frozen=True)
class Fit:
    """The arguments of `Trainer.fit`."""

    train_examples: Any
    per_device_batch_size: int | None
    epochs: int | None
    batch_size: int | None
    max_steps: int | None
    shuffle: bool
    evaluations: Mapping[str, Evaluation | EvaluationFunction]
    samples: Sampler | None
    save: Save
    logging: Logging
    stop: Stop
    profile: Profile
    watchdog: Watchdog | None
    strict: bool
    from_step: int | None

    def __post_init__(self) -> None:
        check_types(self)
        check_least(1, self, "per_device_batch_size", "epochs", "batch_size", "max_steps")
        check_num_steps("max_steps", self.max_steps or 0)
        if self.epochs is None and self.max_steps is None:
            raise UsageError("the length of training is missing: give epochs, max_steps or both.")
        if (self.per_device_batch_size is None) == (self.batch_size is None):
            raise UsageError("give one of per_device_batch_size and batch_size.")
        check_names(self.evaluations, "Fit.evaluations")
        check_sampler(self.samples, "Fit.samples")
        if isinstance(self.save.when, WhenEvaluated):
            self.save.when.check(self.evaluations)
        if not self.save.data_position:
            raise UsageError("save.data_position: `fit` continues by the position in the data. Leave it out.")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, which are compared between processes and written to a file."""
        of_call = {name: getattr(self, name) for name in _OF_CALL}
        return {"fit": of_call} | {name: getattr(self, name) for name in _AS_IN_EXPERIMENT}

    @property
    def length(self) -> str:
        """The user's arguments for the length of training, as text."""
        numbers = {"epochs": self.epochs, "max_steps": self.max_steps}
        return ", ".join(f"{name}={number}" for name, number in numbers.items() if number is not None)

    @property
    def asks_for_checkpoints(self) -> bool:
        """True if the user asked for checkpoints, which need a workdir."""
        return self.save != USUAL_SAVE

    def whole_batch_size(self, ways: int) -> int:
        """Return the number of examples in a step, which the mesh and the microbatches split into `ways`."""
        size = self.batch_size or (self.per_device_batch_size or 0) * ways
        if size % ways:
            raise LayoutError(
                f"batch_size={size} is not a multiple of {ways}, the number of parts into which the mesh and "
                "microbatches split a batch."
            )
        return size

    def check_without_workdir(self) -> None:
        """Check that nothing needs a run directory; `save` is checked when the directory is opened."""
        if self.profile.steps:
            raise UsageError("fit(profile=...) writes to the run directory: give Deployer(workdir=...).")
        if self.strict:
            raise UsageError(
                "fit(strict=True) compares with the settings in the run directory: give "
                "Deployer(workdir=...)."
            )

    def check_in_round(self) -> None:
        """Check that no argument asks for work that the loop over rounds does."""
        options = {
            "save": self.asks_for_checkpoints,
            "strict": self.strict,
            "from_step": self.from_step is not None,
            "logging.trackers": bool(self.logging.trackers),
        }
        names = [name for name, is_given in options.items() if is_given]
        if names:
            raise UsageError(
                f"in deployer.rounds(...) leave out {listed(names)}. The end of each round saves, a "
                "restarted program repeats the unfinished round, and Deployer(trackers=...) gives the "
                "trackers."
            )
