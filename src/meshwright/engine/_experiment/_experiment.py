"""The description of a whole run, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from meshwright.base._internal import documented, explained
from meshwright.engine._adapters._functional import Functional, library_of
from meshwright.engine._evaluation._description import Evaluation, EvaluationFunction, check_names
from meshwright.engine._policies import WhenEvaluated
from meshwright.engine._samples import Sampler, check_sampler
from meshwright.engine._settings import Compile, Logging, Profile, Save, Watchdog
from meshwright.engine._spikes import Spikes
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_least, check_types
from meshwright.errors import UsageError
from meshwright.parallel._internal import MeshRule, Rule
from meshwright.training._internal import (
    Builder,
    Init,
    Loss,
    PipelineSchedule,
    StatefulLoss,
    Std,
    Tx,
    check_num_steps,
)

AUTO = "auto"
"""The value of fields that a run chooses."""


def _check_model(model: Any) -> None:
    """Check that a model is not a module of Flax or Equinox."""
    library = library_of(model)
    if library is None:
        return
    name = model.__name__ if isinstance(model, type) else type(model).__name__
    example = ", example_input" if library == "flax.linen" else ""
    raise UsageError(
        f"Experiment.model is {name}, a module of {library}. Make functions of it: net = "
        f"mw.functional({name}{example}).\n  Write model=net, and in the loss net.apply(params, batch['x'])."
    )


@explained
@documented
@dataclass(frozen=True)
class Input:
    """The examples to train on, and how they are made into batches.

    Example:
      >>> mw.Input({"x": np.zeros((100, 3))}, batch_size=8).epochs is None
      True
    """

    is_known_by_place: ClassVar[bool] = True

    examples: Any
    """A mapping of arrays, an object with `__len__` and `__getitem__`, a function that returns one, or an
    iterable; also `mw.data.Batched` (a loader's batches), `mw.data.Bucketed` or `mw.data.mapped(...)`. See
    `mw.batches`."""
    batch_size: int
    """The number of examples in a batch, over all devices."""
    shuffle: bool = True
    """If true, each epoch is read in a new order, drawn from the experiment's seed."""
    epochs: int | None = None
    """The number of epochs after which the run stops, if `max_steps` does not come first. None repeats the
    examples for ever."""
    num_threads: int | None = None
    """The number of threads that read ahead. None chooses by the kind of the examples."""
    item: str = "examples"
    """The unit counted per second in the metrics, as a plural noun."""
    items_per_example: float = 1
    """The number of those units in one example, such as the tokens of a sequence."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(1, self, "batch_size", "epochs")
        check_least(0, self, "num_threads")


@explained
@documented
@dataclass(frozen=True)
class Experiment:
    """The description of a whole run, for `mw.run` in Python or `meshwright train module:function` in a
    shell.

    Raises:
      UsageError: The value of a field is invalid. The message names the field.

    Example:
      >>> experiment = mw.Experiment(
      ...     workdir="runs/line",
      ...     model=lambda key: {"w": jnp.zeros(())},
      ...     loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
      ...     optimizer=optax.sgd(0.1),
      ...     input=mw.Input({"y": np.ones(16, np.float32)}, batch_size=8),
      ...     max_steps=2,
      ... )
      >>> experiment.seed
      0
    """

    is_known_by_place: ClassVar[bool] = True

    workdir: str
    """The directory of the run, or its URL, such as `s3://bucket/runs/x`. If it has an unfinished run, that
    run is continued."""
    model: Init | Functional
    """A function of a PRNG key that returns the parameters, a pytree of arrays; or the value that
    `mw.functional` returns."""
    loss: Loss | StatefulLoss
    """The function to minimise: `(params, batch, key)`, or `(params, batch)` if it draws no random numbers.
    An argument `step` gets the step. It returns the loss, or `(loss, metrics)`. Leaves of the batch are
    [batch_size, ...]. For a model with a state see `mw.training.StatefulLoss`."""
    optimizer: Tx
    """An optax transformation, or a `mw.training.Trainable` that trains some of the parameters."""
    input: Input
    """The examples to train on, and their batches."""
    max_steps: int
    """The number of updates of the whole run, including those before a restart."""

    mesh: str = "data=-1"
    """The sizes of the mesh axes, the slowest axis first. One size may be -1: the rest of the devices.
    "explicit: data=4,tensor=2" is for models that state shardings, as `mw.make_mesh` says."""
    mesh_rules: tuple[MeshRule, ...] = ()
    """Changes of settings by hardware: `(("NVIDIA H100.*:8", mw.parallel.override(mesh="fsdp=8",
    remat="dots")), …)`. The first rule whose pattern matches all of `mw.parallel.hardware()` is used."""
    rules: tuple[Rule, ...] | None = None
    """Rules that split parameters over the mesh. The first rule that matches a parameter decides. None infers
    the rules from the use that the loss makes of the parameters, as `mw.infer_rules` does."""
    batch_axis_names: tuple[str, ...] | None = None
    """The mesh axes that split a batch. None means `data`, `fsdp`, `expert` and `pipeline`, if the
    mesh has them."""

    compute_dtype: str | tuple[tuple[str, str | None], ...] | None = None
    """The dtype of the parameters in the loss, such as "bfloat16". Floating parameters of wider dtypes are
    cast to it. None keeps their own dtypes. Or pairs of a pattern and a dtype, of which the first that
    matches decides."""
    microbatches: int | Literal["auto"] = 1
    """The number of pieces of a batch that are computed one after the other before each update. "auto" is as
    few as fit into the devices' memory, and refuses to cut a batch whose rows meet in the loss."""
    pipeline_rounds: int = 1
    """How often a microbatch goes around the stages of the mesh axis `pipeline`. With more rounds the devices
    idle less."""
    pipeline_schedule: PipelineSchedule = "gpipe"
    """When the stages of the mesh axis `pipeline` go back. By "gpipe" they do so when all microbatches have
    gone forward. By "1f1b" they do so as soon as the first ones have, and keep less."""
    remat: str | None = None
    """The intermediate values that are kept for the gradient, such as "dots"; see `mw.training.remat`. None
    keeps all of them. "layers:dots" is what each layer keeps, instead of what the model says. "auto"
    chooses for the quickest step that fits; see `docs/plan.md`."""
    parameter_noise: tuple[tuple[str, float | Std], ...] = ()
    """Gaussian noise that is added to parameters in training: pairs of a pattern and a standard deviation;
    see `mw.training.with_parameter_noise`."""
    seed: int = 0
    """The seed of the parameters, the data's order and the steps' randomness."""
    init_state_builder: Builder | None = None
    """A function that returns some or all arrays of a new run's first state, such as
    `mw.engine.from_checkpoint(path)`. All other arrays are initialised from the seed. A continued run does
    not call it."""

    evaluations: Mapping[str, Evaluation | EvaluationFunction] = field(default_factory=dict)
    """Evaluations by name, on examples or by a function of the parameters. The scores of `test` are called
    `test/loss` and so on. A name must be possible as a folder's name."""
    samples: Sampler | None = None
    """Samples of the model for the run's page: `mw.engine.Samples(function)`, or `mw.lm.Generation(model)`,
    which also says how `meshwright sample` and `meshwright serve` generate."""
    save: Save = field(default_factory=Save)
    """The times of checkpoints, and which are kept."""
    stop: Stop = field(default_factory=Stop)
    """Reasons to end the run before `max_steps`: a time limit, or scores that no longer improve."""
    spikes: Spikes | None = None
    """When a loss counts as a spike. The run then goes back to its newest checkpoint, and leaves out the
    batches around the spike. None goes on after any finite loss."""

    logging: Logging = field(default_factory=Logging)
    """The interval of reports, and their destinations."""
    profile: Profile = field(default_factory=Profile)
    """The steps to profile."""
    watchdog: Watchdog | None = field(default_factory=Watchdog)
    """The time after which a run without progress counts as hung. None turns the watchdog off."""
    compile: Compile = field(default_factory=Compile)
    """Options of the XLA compiler, and the directory of compiled programs."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        check_types(self)
        check_least(1, self, "max_steps", "microbatches", "pipeline_rounds")
        check_num_steps("Experiment.max_steps", self.max_steps)
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"Experiment.seed is {self.seed}; it must be at least 0 and below 2**32.")
        if self.microbatches != AUTO and self.input.batch_size % self.microbatches:
            raise UsageError(
                f"microbatches={self.microbatches} does not divide input.batch_size={self.input.batch_size}."
            )
        if self.spikes is not None and not self.save.data_position:
            raise UsageError("spikes: a run goes back by the position of the data; set save.data_position.")
        if isinstance(self.save.when, WhenEvaluated):
            self.save.when.check(self.evaluations)
        check_names(self.evaluations, "Experiment.evaluations")
        check_sampler(self.samples, "Experiment.samples")
