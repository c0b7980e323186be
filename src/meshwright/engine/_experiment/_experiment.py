"""The description of a whole run, as one frozen value."""

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import jax

from meshwright.base._internal import PyTree, documented, explained, is_file_name
from meshwright.engine._adapters._functional import Functional, library_of
from meshwright.engine._evaluation._measured import Measure, StatefulMeasure
from meshwright.engine._evaluation._metric import check_metric
from meshwright.engine._experiment._function import EvaluationFunction
from meshwright.engine._policies import InformedWhen, WhenEvaluated, is_informed
from meshwright.engine._samples import Sampler, check_sampler
from meshwright.engine._settings import Compile, Logging, Profile, Save, Watchdog
from meshwright.engine._spikes import Spikes
from meshwright.engine._stopping import Stop
from meshwright.engine._types import check_least, check_types
from meshwright.errors import UsageError
from meshwright.parallel._internal import MeshRule, Rule
from meshwright.processes._internal import When
from meshwright.training._internal import (
    Builder,
    Init,
    Loss,
    PipelineSchedule,
    StatefulLoss,
    Std,
    Tx,
    check_num_steps,
    eval_params,
)

AUTO = "auto"
"""The value of fields that a run chooses."""
Outputs = Callable[..., Mapping[str, jax.Array]]
"""A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays by name. Each array
has a row for each example."""


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


def _check_names(evaluations: Mapping[str, Any]) -> None:
    """Check that the names of evaluations can be names of folders, for their `outputs`."""
    known: dict[str, str] = {}
    for name in evaluations:
        if not is_file_name(name):
            raise UsageError(
                f"Experiment.evaluations: {name!r} cannot be a folder's name, and each evaluation needs one. "
                'Give a name of printable characters without "/", such as "test".'
            )
        other = known.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if other != name:
            raise UsageError(
                f"Experiment.evaluations: {other!r} and {name!r} are one name on some disks. Rename one."
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


USUAL_SIZE = 256
"""The batch size of an evaluation that stands for the next number that the mesh can split."""


@explained
@documented
@dataclass(frozen=True)
class Evaluation:
    """An evaluation. Each example is evaluated once. The last batch is padded, and padding is not counted.

    Example:
      >>> def error(params, batch):
      ...     return {"error": abs(params["w"] - batch["y"])}  # one value for each example
      >>> mw.Evaluation(error, {"y": np.ones(100)}, when=200).when
      200
    """

    is_known_by_place: ClassVar[bool] = True

    measure: Measure | StatefulMeasure | None
    """A function `(params, batch)`, or `(params, batch, model_state)` for a model with a state. It returns
    values by name: one value, or an array of values, for each example. Their averages are the scores. An
    argument `step` gets the step of the state. None if `metric_fn` returns all scores."""
    examples: Any
    """The examples, of the kinds that `Input.examples` lists."""
    when: int | When | InformedWhen = 500
    """The steps after which to evaluate. A number means each time after so many steps. A function may take
    the step, or the step and the values that the run reported last, by name:
    `lambda step, metrics: metrics.get("loss", inf) < 2`. It is also called for step 0, without values. A run
    that is killed and continued evaluates at the same steps."""
    batch_size: int = USUAL_SIZE
    """The number of examples in a batch, over all devices; 256 stands for the next number that the mesh can
    split. A loader that has its own keeps that, as a `DataLoader` does."""
    dtype: str | None = "train"
    """The dtype to compute in, as in `Experiment.compute_dtype`. "train" means that dtype, and None the
    parameters' own dtypes."""
    params: Callable[[Any], PyTree] = eval_params
    """A function that returns the parameters to evaluate, given the state. By default they are the averages,
    if the optimizer keeps some (`mw.training.keep_ema`). `lambda state: state.params` evaluates the
    parameters themselves."""
    outputs: Outputs | None = None
    """A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays by name, with a
    row for each example. They are written to `outputs/NAME/step_00000100.jsonl` in the run directory, one
    line for each example."""
    at_end: bool = True
    """If true, the run also evaluates after its last step, whatever `when` says."""
    predict: Callable[..., PyTree] | None = None
    """A function `(params, batch)`, or `(params, batch, model_state)`, that returns arrays with a row for
    each example: the predictions for `metric_fn`."""
    metric_fn: Callable[..., Mapping[str, float]] | None = None
    """A function that returns scores that are not averages, as numbers by name. Process 0 computes them for
    all processes. It may have any of these arguments: `examples`; `preds`, the predictions for them in the
    same order; `scores`, the averages of `measure`; and `step`. For example
    `lambda examples, preds: {"f1": f1_score(examples["label"], preds)}`, or, without `predict`,
    `lambda scores: {"perplexity": math.exp(scores["nll"])}`."""

    def __post_init__(self) -> None:
        check_types(self)
        check_least(1, self, "when", "batch_size")
        is_informed(self.when)  # raises if it is not a policy
        names = "Evaluation.metric_fn", "Evaluation.predict"
        check_metric(self.metric_fn, self.predict, has_scores=self.measure is not None, names=names)
        if self.measure is None and self.metric_fn is None:
            raise UsageError("Evaluation has no scores: give measure, or predict and metric_fn.")


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
        _check_names(self.evaluations)
        check_sampler(self.samples, "Experiment.samples")
