"""`Trainer`: it trains and evaluates a model, given a loss, an optimizer and examples."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal

import jax
import optax

from meshwright.base._internal import PyTree, explained
from meshwright.checkpoints._internal import InMemory, Keep
from meshwright.data._internal import Collate
from meshwright.engine._adapters._functional import functional
from meshwright.engine._comparable import comparable_settings
from meshwright.engine._compiler import step_options
from meshwright.engine._deployer._deployer import Deployer
from meshwright.engine._describe import describe
from meshwright.engine._evaluation._function import ParamsFunction
from meshwright.engine._functions import step_of
from meshwright.engine._predictor._predictor import Predictor
from meshwright.engine._samples import Sampler
from meshwright.engine._settings import Compile, Logging, Profile, Watchdog
from meshwright.engine._stopping import Stop
from meshwright.engine._trainer._arguments import call_of, with_full_names
from meshwright.engine._trainer._evaluation import Evaluated, best_of
from meshwright.engine._trainer._fit import Progress, fit
from meshwright.engine._trainer._place import Place
from meshwright.engine._trainer._recipe import Recipe, both_losses
from meshwright.engine._trainer._schedule import batch_sizes
from meshwright.engine._trainer._start import Start, check_same, check_step, lost
from meshwright.parallel._internal import Layout, Rules, in_mesh
from meshwright.processes import _internal as processes
from meshwright.processes._internal import When
from meshwright.training._internal import (
    Chosen,
    ComputeDtype,
    Params,
    Trainable,
    TrainState,
    Variables,
    narrowing,
)

_LOGGING, _STOP, _NO_PROFILE, _WATCHDOG, _COMPILE = Logging(), Stop(), Profile(), Watchdog(), Compile()
_NO_SETTINGS = ("strict", "from_step")
_ARRAYS = ("self", "deployer", "params", "model_state", "opt_state", "last_ckpt_info", "name")
"""The arguments that are not settings. Settings are compared between processes and written to a file."""


@explained
class Trainer(Generic[Params]):
    """Trains a model on any number of devices. It passes your functions only the arguments that they name.

    Args:
      deployer: The deployer. The trainer uses its mesh, seed, workdir and log.
      loss: A function that returns the loss to minimise, a scalar or a `Mean`, or a pair of the loss and
        metrics, `{name: scalar or Mean}`. It may name the arguments `params`, `model` (if a model is given),
        `batch`, `key`, `train` (False in evaluation), `step`, and `model_state` (then it returns the new
        model state as a third value). It calls `model(inputs)` with a batch; an Equinox module, which takes
        one example, is mapped over the batch. Without a loss no `eval/loss` is computed.
      optimizer: An optax gradient transformation.
      collate: A function that makes a dictionary of arrays from a list of examples. By default the arrays of
        the examples are stacked.
      model: A Flax or Equinox model, a pair `(init, apply)`, or the result of `mw.functional(...)`. A Linen
        module gets its example inputs through `mw.functional`.
      params, model_state, opt_state: The JAX or NumPy arrays to start from, instead of the initial arrays of
        the model. They are copied.
      last_ckpt_info: The information that `deployer.load_ckpt` returned with these arrays. `fit` continues
        after its `step`, and with the epoch after its `epoch_idx`, if it has one.
      rules: The rules by which parameters are split over the mesh. They come before the inferred rules. A
        dictionary, such as `{"model": rules, "lora": None}`, has rules for each top-level key of the
        parameters. None means that all rules are inferred.
      trainable: A pattern of the names of the parameters to train. All other parameters are frozen.
      compute_dtype: The dtype in which the loss is computed, such as "bfloat16", or a table of dtypes by
        path. Floating-point parameters of a wider dtype are cast to it.
      microbatches: The number of pieces into which the batch of a step is split. They are computed one after
        the other; on a mesh with the axis `pipeline`, several at a time.
      train_step: A function that makes a whole update, instead of the usual one. It may name `state`, `batch`
        and `key`, and returns the new state, with `step=state.step + 1`, and `{name: scalar or Mean}`. For
        complex parameters see `mw.training.Step`.
      lr_schedule: A function from the step to the learning rate. It is reported as `learning_rate` if the
        optimizer does not show its own learning rate, as optax's optimizers with a schedule do.
      compile: The options of the XLA compiler for the step, and the folder that keeps compiled programs. A
        run's first lines say which options are set.
      name: The name of the trainer's run directory, a folder in the workdir. By default the workdir itself is
        the run directory. Several trainers of one deployer with a workdir need different names.

    Raises:
      UsageError: A function names an argument that does not exist, there are no parameters to start from, or
        the compiler does not know an option.
      LayoutError: The parameters do not fit the mesh.

    Example:
      >>> trainer = mw.Trainer(
      ...     mw.Deployer(seed=0, verbose=False),
      ...     params={"w": jnp.zeros(())},
      ...     loss=lambda params, batch: ((params["w"] - batch["y"]) ** 2).mean(),
      ...     optimizer=optax.sgd(0.5),
      ... )
      >>> examples = {"y": np.ones(16, np.float32)}
      >>> trainer.fit(examples, batch_size=8, epochs=1, eval_examples=examples)
      {'loss': 0.0}
    """

    def __init__(
        self,
        deployer: Deployer,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: optax.GradientTransformation,
        collate: Collate | None = None,
        model: Any = None,
        params: Params | None = None,
        model_state: PyTree = None,
        opt_state: PyTree = None,
        last_ckpt_info: Mapping[str, Any] | None = None,
        rules: Rules = None,
        trainable: Chosen | None = None,
        compute_dtype: ComputeDtype = None,
        microbatches: int = 1,
        train_step: Callable[..., Any] | None = None,
        lr_schedule: optax.Schedule | None = None,
        compile: Compile = _COMPILE,  # noqa: A002 - as in Experiment
        name: str | None = None,
    ):
        given = {key: value for key, value in locals().items() if key not in _ARRAYS}
        self._settings = comparable_settings(given) if jax.process_count() > 1 else {}
        check_step(loss, train_step, microbatches)
        narrowing(compute_dtype)  # raises an error for an invalid dtype
        self.deployer, self._place = deployer, Place(deployer, name)
        self._described = describe(given) if self._place.directory else ""
        self.name = "trainer" if name is None else name
        """The name of this trainer among the trainers of its deployer."""
        deployer.num_trainers += 1
        deployer.loops.join(self)
        with in_mesh(deployer.mesh):  # the model may state how its parameters are split
            self.model = None if model is None else functional(model)
        start = Start(self.model, params, model_state, opt_state, last_ckpt_info)
        self._recipe = Recipe(
            deployer=deployer,
            model=self.model,
            start=start,
            tx=optimizer if trainable is None else Trainable(trainable, optimizer),
            losses={} if loss is None else both_losses(loss, self.model, start.has_state),
            train_step=None if train_step is None else step_of(train_step),
            collate=collate,
            rules=rules,
            compute_dtype=compute_dtype,
            accumulate=microbatches,
            lr_schedule=lr_schedule,
            compiler=step_options(compile, deployer.mesh),
        )
        self._progress = Progress(position=start.position)

    @property
    def layout(self) -> Layout:
        """The layout of the arrays, by the given rules and then by the rules inferred from the model."""
        return self._recipe.layout

    @property
    def state(self) -> TrainState[Params]:
        """The training state: the initial state, or the state after the last complete step.

        It is available after an error in `fit`, too. The next `fit` donates its arrays, so copy those that
        you need afterwards. Set it to continue from another state with the same shapes and shardings.
        """
        recipe, progress = self._recipe, self._progress
        if progress.state is None and progress.read is not None:
            progress.state, progress.read = progress.read(recipe.target), None
        if progress.state is None:
            progress.state = recipe.start.state(recipe.tx, self.deployer.seed, recipe.layout)
        if any(x.is_deleted() for x in jax.tree.leaves(progress.state)):
            raise lost()
        return progress.state

    @state.setter
    def state(self, state: TrainState[Params]) -> None:
        check_same(self._recipe.target, state)
        self._progress.state = state

    def begin_from(self, read: Callable[[TrainState], TrainState], step: int) -> None:
        """Continue from a state that is read when it is needed.

        Args:
          read: A function that returns the state. Its argument is the state's structure, as structs.
          step: The number of updates that the state has had.
        """
        self._progress.state, self._progress.read, self._progress.first_step = None, read, step

    @property
    def params(self) -> Params:
        """The parameters, on the mesh: a tree like the given one, or like the result of `model.init`."""
        return self.state.params

    @property
    def model_state(self) -> PyTree:
        """The model's state besides its parameters, such as batch statistics; None if it has none."""
        return self.state.model_state

    @property
    def step(self) -> int:
        """The number of updates made so far."""
        return int(self.state.step)

    @explained
    @processes.collective()
    def fit(
        self,
        train_examples: Any,
        per_device_batch_size: int | None = None,
        epochs: int | None = None,
        eval_examples: Any = None,
        *,
        batch_size: int | None = None,
        max_steps: int | None = None,
        eval_per_device_batch_size: int | None = None,
        eval_when: int | When | None = None,
        eval_loss: bool = True,
        eval_predictor: Predictor | None = None,
        eval_metric_fn: Callable[..., Mapping[str, float]] | None = None,
        evaluations: Mapping[str, ParamsFunction] = {},
        samples: Sampler | None = None,
        best: Mapping[str, Literal["min", "max"]] = {},
        save_when: int | When | None = None,
        keep_every_epochs: int | None = None,
        keep: int | Keep | None = None,
        memory: InMemory | None = None,
        shuffle: bool = True,
        logging: Logging = _LOGGING,
        stop: Stop = _STOP,
        profile: Profile = _NO_PROFILE,
        watchdog: Watchdog | None = _WATCHDOG,
        strict: bool = False,
        from_step: int | None = None,
    ) -> dict[str, float]:
        """Train, and return the scores of the last evaluation. Collective.

        A second call trains further, on the examples that it is given, in another order and with other random
        numbers of `mw.data.mapped`. For equal shapes nothing is compiled again.

        With a workdir a restarted program makes the same calls again, in the same order. A call that was
        finished returns at once. A call that was interrupted continues after its last checkpoint, also in the
        middle of an epoch, and its result has the same bits as without the interruption. The last finished
        call trains further if it now asks for more steps or epochs.

        Args:
          train_examples: A list, a mapping of arrays or any other examples that `mw.batches` takes, including
            `mw.data.Batched`, `mw.data.Bucketed` and `mw.data.mapped`.
          per_device_batch_size: The number of examples for each part into which the mesh splits a batch. A
            step takes `microbatches` times as many.
          batch_size: The number of examples in a step, on any mesh. Give it instead of
            `per_device_batch_size`.
          epochs: The number of times that this call reads all examples. The examples at the end of an epoch
            that do not fill a batch are left out.
          eval_examples: The examples to evaluate on after each epoch and after the last step. Each example
            counts once.
          max_steps: The largest number of updates in this call. Give it with `epochs` or instead.
          eval_per_device_batch_size: The number of examples for each part of a batch in evaluation. By
            default it is the same as in training. The random numbers of a loss in evaluation depend on the
            size of the whole batch, so with `batch_size` they do not depend on the mesh. A loader that has a
            batch size of its own keeps it.
          eval_when: The number of steps between evaluations, or a policy, instead of after each epoch.
          eval_loss: True if the loss and its metrics are among the scores. Give False if the loss cannot be
            computed on `eval_examples`, for example without labels, and evaluate the predictions only.
          eval_predictor: The predictor whose predictions on `eval_examples` go to `eval_metric_fn`.
          eval_metric_fn: A function that returns `{name: number}` for all examples together. It names any of
            `examples`, `preds`, `step` and `scores`, which has the loss and its metrics over all examples. If
            it names no `preds`, no predictor is needed:
            `lambda scores: {"perplexity": math.exp(scores["loss"])}`.
          evaluations: Functions `(params) -> {name: number}` by name, for other evaluations at the same
            times, such as tasks of a benchmark; see `mw.engine.EvaluationFunction`. Scores are called
            `tasks/acc`.
          samples: Samples for the run's page: `mw.engine.Samples(function)`, or `mw.lm.Generation(model)`.
          best: The scores by which the best checkpoint is kept: `{"loss": "min", "accuracy": "max"}`. Here
            and in `stop` the names are as `fit` returns them, or as in reports, "eval/loss".
          save_when: The number of steps between checkpoints, or a policy, instead of after each epoch.
          keep_every_epochs: The number of epochs between checkpoints that are always kept, besides the newest
            and the best.
          keep: The number of newest checkpoints to keep besides these, or a policy, such as
            `mw.checkpoints.multiples(1000)`.
          memory: Further checkpoints, more often, in the memory of each host:
            `mw.checkpoints.InMemory(every=10)`.
          shuffle: True to read the examples of each epoch in a new random order.
          logging: The settings of the reports, such as `mw.Logging(every=10)`.
          stop: The conditions that end training before its last step, a time limit or early stopping:
            `mw.Stop(max_seconds=3600, early=mw.engine.early_stopping("eval/loss", "min", patience=3))`.
          profile: The steps to profile, `mw.Profile((100,))`. The run directory gets the profiles.
          watchdog: The time after which a hang is reported, `mw.Watchdog(600)`. None means never.
          strict: True to raise an error if the settings differ from those that the run was trained with.
          from_step: The step whose checkpoint the run goes back to, as in `mw.run`.

        Raises:
          UsageError, InputError, LayoutError: The workdir contains another run, arguments do not fit each
            other, or they differ between processes. The error is raised before the first step: evaluation
            and saving are tried out first.
          DivergedError: A reported loss, or a state that is about to be saved, is not finite.
          Interrupted: The process received a signal to stop. With a workdir the state was saved.
        """
        given = with_full_names({key: value for key, value in locals().items() if key != "self"})
        call = call_of(self._recipe, given, has_directory=self._place.directory is not None)
        given = {key: value for key, value in given.items() if key not in _NO_SETTINGS}
        with processes.broadcasting_errors():
            processes.compare("the trainer's settings", lambda: self._settings | comparable_settings(given))
            place = self._place.open(call.needs_workdir)
            described = lambda: self._described + describe({"fit": given})  # noqa: E731
            return fit(self._recipe, self._progress, call, lambda: self.state, place, described)

    @explained
    @processes.collective()
    def evaluate(
        self,
        examples: Any,
        per_device_batch_size: int | None = None,
        *,
        batch_size: int | None = None,
        loss: bool = True,
        predictor: Predictor | None = None,
        metric_fn: Callable[..., Mapping[str, float]] | None = None,
    ) -> dict[str, float]:
        """Return the scores of the parameters on examples, as `fit` computes them. Collective.

        Args:
          examples: The examples to evaluate on. Each example counts once.
          per_device_batch_size: The number of examples for each part into which the mesh splits a batch.
          batch_size: The number of examples in a batch. Give it instead of `per_device_batch_size`.
          loss: True if the loss and its metrics are among the scores.
          predictor: The predictor whose predictions on `examples` go to `metric_fn`.
          metric_fn: A function that returns `{name: number}`; see `eval_metric_fn` of `fit`.

        Raises:
          UsageError: Neither a loss nor a metric function is given, or the arguments do not fit each other.
          ExamplesError: There are no examples.
        """
        _, size = batch_sizes(per_device_batch_size, batch_size, self.deployer.layout().batch_ways)
        evaluated = Evaluated(self._recipe, examples, size, loss, predictor, metric_fn)
        return evaluated.scoring()(self.state)

    def best(self, score: str | None = None, mode: Literal["min", "max"] | None = None) -> Variables[Params]:
        """Return the parameters, and the model state, of the checkpoint with the best evaluation. Collective.

        These are the values that were evaluated: averages, if the optimizer keeps averages.

        Args:
          score: The name of a score, such as `loss`. None means the score in the argument `best` of `fit`.
          mode: "min" if the lowest value is best, "max" if the highest is. None takes the mode from `best` or
            from the name of the score.

        Raises:
          CheckpointError: No checkpoint has this score.
          UsageError: There is no workdir, or the score or its mode is not known.
        """
        return best_of(self._place.checkpoints("best"), self._recipe.target, score, mode)
