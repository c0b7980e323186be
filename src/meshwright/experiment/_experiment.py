"""A run, described whole, as one frozen value."""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax

from meshwright.adapters import Functional, library_of
from meshwright.arrays import Casts
from meshwright.checkpoint import HOST_NBYTES, Keep
from meshwright.docstrings import documented
from meshwright.engine import (
    Compile,
    InformedWhen,
    Logging,
    Profile,
    Stop,
    Watchdog,
    WhenEvaluated,
    check_types,
    is_informed,
)
from meshwright.errors import UsageError
from meshwright.evaluation import Measure, StatefulMeasure, check_metric
from meshwright.sharding import MeshRule, Rule
from meshwright.storage import is_file_name
from meshwright.train import (
    Builder,
    Init,
    Loss,
    StatefulLoss,
    Std,
    Tx,
    eval_params,
)
from meshwright.tree import PyTree
from meshwright.unknown_arguments import explained
from meshwright.when import When

Outputs = Callable[..., Mapping[str, jax.Array]]
"""`(params, batch)`, or `(params, batch, model_state)`, `-> {name: array}` with a row for each example."""


def _at_least(least: int, owner: Any, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, int) and value < least:
            raise UsageError(f"{type(owner).__name__}.{name} is {value}; it must be at least {least}.")


def _check_model(model: Any) -> None:
    """Check that a model of Flax or Equinox was made into functions.

    Raises:
      UsageError: It was not.
    """
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
    """Check that evaluations can be told apart, in reports and as folders of `outputs`.

    Raises:
      UsageError: a name cannot be that of a folder, or two are one on disks that ignore case.
    """
    known: dict[str, str] = {}
    for name in evaluations:
        if not is_file_name(name):
            raise UsageError(
                f"Experiment.evaluations: {name!r} cannot be a folder's name, as that of an evaluation must. "
                'Give one without "/" that prints, such as "test".'
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
    """A mapping of arrays, anything with `__len__` and `__getitem__`, a function that returns such, or an
    iterable; `mw.Batched` (a loader's batches), `mw.Bucketed` or `mw.mapped(...)`: see `mw.batches`."""
    batch_size: int
    """Examples in a batch, over all devices."""
    shuffle: bool = True
    """Read each epoch in a new order, drawn from the experiment's seed."""
    epochs: int | None = None
    """Stop after so many, if `max_steps` does not come first; None repeats for ever."""
    num_threads: int | None = None
    """Threads that read ahead; None decides by where the examples are."""
    item: str = "examples"
    """The unit counted per second in the metrics, as a plural noun."""
    items_per_example: float = 1
    """The number of those units in one example, such as the tokens of a sequence."""

    def __post_init__(self) -> None:
        check_types(self)
        _at_least(1, self, "batch_size", "epochs")
        _at_least(0, self, "num_threads")


@explained
@documented
@dataclass(frozen=True)
class Evaluation:
    """An evaluation: every example once, the last batch padded and the padding not counted.

    Example:
      >>> def error(params, batch):
      ...     return {"error": abs(params["w"] - batch["y"])}  # one value for each example
      >>> mw.Evaluation(error, {"y": np.ones(100)}, when=200).when
      200
    """

    is_known_by_place: ClassVar[bool] = True

    measure: Measure | StatefulMeasure | None
    """`(params, batch) -> {name: values}`, a value or an array of them for each example, to be averaged; of a
    model with a state `(params, batch, model_state) -> {name: values}`. None where `metric_fn` gives all
    scores."""
    examples: Any
    """As `Input.examples`."""
    when: int | When | InformedWhen = 500
    """After these steps (a number: every so many), and after the last. A function may be of the step, or
    of the step and what the run last reported by each name, which is nothing at first:
    `lambda step, metrics: metrics.get("loss", inf) < 2`. It is asked about step 0, too. A run that is
    killed and continued decides as if nothing had happened."""
    batch_size: int = 256
    """Examples at a time, over all devices."""
    dtype: str | None = "train"
    """As `Experiment.compute_dtype`; "train" uses that one, None the parameters' own dtypes."""
    params: Callable[[Any], PyTree] = eval_params
    """Returns the parameters to evaluate from the state. By default the average, if the optimizer keeps one
    (`mw.train.keep_ema`), or say `lambda state: state.params`."""
    outputs: Outputs | None = None
    """`(params, batch) -> {name: array}` with a row for each example, of a model with a state `(params,
    batch, model_state)`: written to `outputs/NAME/step_00000100.jsonl` of the run, a line an example."""
    at_end: bool = True
    """Evaluate after the last step, whatever `when` says."""
    predict: Callable[..., PyTree] | None = None
    """`(params, batch) -> arrays` with a row for each example, of a model with a state `(params, batch,
    model_state)`: predictions for `metric_fn`."""
    metric_fn: Callable[..., Mapping[str, float]] | None = None
    """Scores that are no averages, as numbers by name, which process 0 computes for all. It names any of
    `examples`, `preds`, what `predict` made of each of them in order, and `scores`, the averages of what is
    measured: `lambda examples, preds: {"f1": f1_score(examples["label"], preds)}`; or, without
    `predict`, `lambda scores: {"perplexity": math.exp(scores["nll"])}`."""

    def __post_init__(self) -> None:
        check_types(self)
        _at_least(1, self, "when", "batch_size")
        is_informed(self.when)  # raises if it is no policy
        names = "Evaluation.metric_fn", "Evaluation.predict"
        check_metric(self.metric_fn, self.predict, has_scores=self.measure is not None, names=names)
        if self.measure is None and self.metric_fn is None:
            raise UsageError("Evaluation scores nothing: give measure, or predict and metric_fn.")


@explained
@documented
@dataclass(frozen=True)
class Save:
    """When to save, where, in what form, and what to keep.

    Example:
      >>> mw.Save(when=1000, keep=3).keep
      3
    """

    is_known_by_place: ClassVar[bool] = True

    when: int | When | InformedWhen = 500
    """After these steps (a number: every so many), and always after the last. A function may be of the step,
    or of the step and the scores found at this very step: `mw.engine.when_evaluated("test", "dev")`."""
    keep: int | Keep = 2
    """The checkpoints to keep: a number of the newest, or a policy such as `mw.checkpoint.best`."""
    directory: str | None = None
    """The directory of the checkpoints, or an address in a store, `s3://bucket/run`; None for the folder
    `checkpoints` in the run directory. Give each run one of its own."""
    cast: str | Sequence[tuple[str, Any]] = ()
    """Dtypes to save in: pairs of a pattern and a dtype, of which the first that matches decides. A dtype
    alone is for the parameters. A run that continues casts back."""
    names: Callable[[str], str | None] | None = None
    """From the name of a leaf of the state to the one that it is saved by, or to None, which leaves it out. A
    run that continues takes the names back, and what was left out from `init_state_builder`, or as it is
    initialised. None saves all leaves by their own names."""
    data_position: bool = True
    """Save where the data stand, so that a run goes on there. Without, it begins with the data anew."""
    host_nbytes: int = HOST_NBYTES
    """Bytes of copies on the host, not written yet, that each process may hold."""

    def __post_init__(self) -> None:
        check_types(self)
        _at_least(1, self, "when", "keep", "host_nbytes")
        is_informed(self.when)  # raises if it is no policy
        if self.directory == "":
            raise UsageError("Save.directory is empty; None stands for the workdir.")


@explained
@documented
@dataclass(frozen=True)
class Experiment:
    """A whole run. `run` it from Python, or `meshwright train module:function` from a shell.

    Raises:
      UsageError: naming the field whose value cannot be.

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
    """The directory of the run, or its address in a store, `s3://bucket/runs/x`. An unfinished run
    found there is continued."""
    model: Init | Functional
    """Makes the parameters, a pytree of arrays, from a PRNG key; or what `mw.functional` returns."""
    loss: Loss | StatefulLoss
    """`(params, batch, key) -> loss` or `(loss, metrics)`, to be minimised; or `(params, batch)`, if it draws
    nothing. Leaves of the batch are [batch_size, ...]. For a model with a state see `mw.train.StatefulLoss`.
    """
    optimizer: Tx
    """Any optax transformation, or a `mw.Trainable` that trains some of the parameters."""
    input: Input
    """The examples to train on, and their batches."""
    max_steps: int
    """Updates in all, counting those before a restart."""

    mesh: str = "data=-1"
    """Axis sizes, the slowest first; -1 once, for the rest of the devices."""
    mesh_rules: tuple[MeshRule, ...] = ()
    """Changes of settings by hardware: `(("NVIDIA H100.*:8", mw.override(mesh="fsdp=8",
    remat="dots")), …)`. The first rule whose pattern matches all of `mw.sharding.hardware()` stands."""
    rules: tuple[Rule, ...] | None = None
    """Rules that split parameters over the mesh; the first that answers decides. None infers them from what
    the loss does with them, as `mw.auto` does."""
    batch_axis_names: tuple[str, ...] | None = None
    """The mesh axes that split a batch; None means those of data and fsdp that the mesh has."""

    compute_dtype: str | tuple[tuple[str, str | None], ...] | None = None
    """"bfloat16", say: wider floating parameters are cast to it for the loss; None computes in their own.
    Or pairs of a pattern and a dtype, of which the first that matches decides."""
    microbatches: int = 1
    """Pieces in which each batch is computed before its update."""
    remat: str | None = None
    """The intermediate values kept for the gradient, such as "dots", see `mw.train.remat`; None keeps all."""
    parameter_noise: tuple[tuple[str, float | Std], ...] = ()
    """Gaussian noise on parameters in training: pairs of a pattern and a standard deviation, see
    `mw.train.with_parameter_noise`."""
    seed: int = 0
    """The seed of the parameters, the data's order and the steps' randomness."""
    init_state_builder: Builder | None = None
    """Makes a new run's first state, in whole or in part: `mw.from_checkpoint(path)`. What it does
    not give is initialised as if it gave nothing. A run that is continued does not call it."""

    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)
    """Evaluations by name; `test` gives scores `test/loss` and so on. A folder could be called so."""
    save: Save = Save()
    """When to save, and what to keep."""
    stop: Stop = field(default_factory=Stop)
    """Reasons to end the run before `max_steps`: a time limit, or scores that get no better."""

    logging: Logging = field(default_factory=Logging)
    """The interval of reports, and where they go."""
    profile: Profile = field(default_factory=Profile)
    """The steps to profile."""
    watchdog: Watchdog | None = field(default_factory=Watchdog)
    """When the run counts as hung; None never looks."""
    compile: Compile = field(default_factory=Compile)
    """Options of the XLA compiler, and where compiled programs are kept."""

    def __post_init__(self) -> None:
        _check_model(self.model)
        check_types(self)
        _at_least(1, self, "max_steps", "microbatches")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"Experiment.seed is {self.seed}; it must be at least 0 and below 2**32.")
        if self.input.batch_size % self.microbatches:
            raise UsageError(
                f"microbatches={self.microbatches} does not divide input.batch_size={self.input.batch_size}."
            )
        if isinstance(self.save.when, WhenEvaluated):
            self.save.when.check(self.evaluations)
        _check_names(self.evaluations)


def as_casts(cast: str | Casts) -> Casts:
    """Return patterns with dtypes: a dtype alone is for the parameters."""
    return [("^params/.*", cast)] if isinstance(cast, str) else cast
