"""`Trainer`: it trains and evaluates a model, given a loss, an optimizer and examples."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Literal
from weakref import ref

import jax
import optax

from meshwright.base._internal import PyTree, explained, is_file_name
from meshwright.checkpoints._internal import open_best, restore
from meshwright.data._internal import Collate
from meshwright.engine._adapters._functional import functional
from meshwright.engine._compiler import step_options
from meshwright.engine._deployer._deployer import Deployer
from meshwright.engine._describe import comparable_settings, describe
from meshwright.engine._evaluation._description import Evaluation, EvaluationFunction
from meshwright.engine._evaluation._parts import scoring_of
from meshwright.engine._functions import step_of
from meshwright.engine._samples import Sampler
from meshwright.engine._settings import Compile, Logging, Profile, Save, Watchdog
from meshwright.engine._stopping import Stop
from meshwright.engine._trainer._arguments import USUAL_SAVE, Fit
from meshwright.engine._trainer._fit import Call, Progress
from meshwright.engine._trainer._recipe import Recipe, both_losses
from meshwright.engine._trainer._start import Start, check_same, check_step, lost
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout, Rules, in_mesh
from meshwright.processes import _internal as processes
from meshwright.training._internal import (
    Chosen,
    ComputeDtype,
    Params,
    Trainable,
    TrainState,
    Variables,
    eval_params,
    narrowing,
    only_averages,
)

_LOGGING, _STOP, _NO_PROFILE, _WATCHDOG, _COMPILE = Logging(), Stop(), Profile(), Watchdog(), Compile()
_ARRAYS = ("self", "deployer", "params", "model_state", "opt_state", "last_ckpt_info", "name")
"""The arguments that are not settings. Settings are compared between processes and written to a file."""


_RESERVED = ("checkpoints", "rounds")


class RunDirectory:
    """The run directory of a trainer."""

    def __init__(self, deployer: Deployer, name: str | None):
        if name is not None and (not is_file_name(name) or name in _RESERVED):
            raise UsageError(
                f"Trainer(name={name!r}): it cannot be a folder's name. Give a name of printable characters "
                'without "/", such as "actor".'
            )
        self._deployer, self._name = deployer, name

    @property
    def path(self) -> Path | None:
        """The run directory, or None if there is no workdir."""
        workdir = self._deployer.workdir
        return None if workdir is None else workdir / (self._name or "")

    def open(self, is_needed: bool) -> str | None:
        """Return the run directory, and reserve it for this trainer. Return None if there is no workdir."""
        if self.path is None and not is_needed:
            return None
        directory = self.shared_path("saving checkpoints")
        owner = self._deployer.trained_in.get(directory)
        if owner is not None and owner() not in (None, self):
            raise UsageError(
                f"another Trainer of this Deployer trains in {directory} already.\n"
                "  Give each trainer a different name: Trainer(..., name='actor')."
            )
        self._deployer.trained_in[directory] = ref(self)
        return str(directory)

    def shared_path(self, purpose: str) -> Path:
        """Return the run directory, which all processes must share for this purpose."""
        return self._deployer.shared_workdir(purpose) / (self._name or "")


@explained
class Trainer(Generic[Params]):
    """Trains a model on any number of devices. It passes your functions only the arguments that they name.

    Args:
      deployer: The deployer. The trainer uses its mesh, seed, workdir and log.
      loss: A function that returns the loss to minimise, a scalar or a `Mean`, or a pair of the loss and
        metrics, `{name: scalar or Mean}`. It may name the arguments `params`, `model` (if a model is given),
        `batch`, `key`, `train` (False in evaluation), `step`, and `model_state` (then it returns the new
        model state as a third value). It calls `model(inputs)` with a batch; an Equinox module, which takes
        one example, is mapped over the batch.
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
      >>> evaluations = {"test": mw.Evaluation("loss", examples)}
      >>> trainer.fit(examples, batch_size=8, epochs=1, evaluations=evaluations)
      {'test/loss': 0.0}
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
        settings = {name: value for name, value in locals().items() if name not in _ARRAYS}
        check_step(loss, train_step, microbatches)
        narrowing(compute_dtype)  # raises an error for an invalid dtype
        self.deployer, self._run_directory = deployer, RunDirectory(deployer, name)
        # Now, because a function may count its calls in a variable, which is a part of what it is made from.
        self._described = describe(settings) if self._run_directory.path else ""
        self._compared = comparable_settings(settings) if jax.process_count() > 1 else {}
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
        *,
        batch_size: int | None = None,
        max_steps: int | None = None,
        shuffle: bool = True,
        evaluations: Mapping[str, Evaluation | EvaluationFunction] = {},
        samples: Sampler | None = None,
        save: Save = USUAL_SAVE,
        logging: Logging = _LOGGING,
        stop: Stop = _STOP,
        profile: Profile = _NO_PROFILE,
        watchdog: Watchdog | None = _WATCHDOG,
        strict: bool = False,
        from_step: int | None = None,
    ) -> dict[str, float]:
        """Train, and return the newest scores, by their names in reports: `test/loss`. Collective.

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
          max_steps: The largest number of updates in this call. Give it with `epochs` or instead.
          shuffle: True to read the examples of each epoch in a new random order.
          evaluations: Evaluations by name: `{"test": mw.Evaluation("loss", examples)}`. Without a `when` they
            are made after each epoch, and without a `batch_size` on batches as large as in training. The
            random numbers of a loss in evaluation depend on the size of the whole batch.
          samples: Samples for the run's page: `mw.engine.Samples(function)`, or `mw.lm.Generation(model)`.
          save: The checkpoints. By default the newest is kept, if there is a workdir. To keep the best, too:
            `mw.Save(keep=mw.checkpoints.best("test/loss", "min"))`. At the end of an epoch the scores that a
            policy is given have its number, `epoch`, too.
          logging: The settings of the reports, such as `mw.Logging(every=10)`.
          stop: The conditions that end training before its last step, a time limit or early stopping:
            `mw.Stop(max_seconds=3600, early=mw.engine.early_stopping("test/loss", "min", patience=3))`.
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
        arguments = Fit(**{name: value for name, value in locals().items() if name != "self"})
        if self._run_directory.path is None:
            arguments.check_without_workdir()
        if self.deployer.loops.is_in_round:
            arguments.check_in_round()
        compared = lambda: self._compared | comparable_settings(arguments.settings)  # noqa: E731
        with processes.broadcasting_errors():
            processes.compare("the trainer's settings", compared)
            directory = self._run_directory.open(arguments.asks_for_checkpoints)
            call = Call(self._recipe, self._progress, arguments, lambda: self.state)
            return call.run(directory, lambda: self._described + describe(arguments.settings))

    @explained
    @processes.collective()
    def evaluate(self, evaluation: Evaluation | EvaluationFunction) -> dict[str, float]:
        """Return the scores of the parameters by an evaluation, as `fit` computes them. Collective.

        Args:
          evaluation: The evaluation, such as `mw.Evaluation("loss", examples, batch_size=64)`. Its `when` and
            `outputs` are not used.

        Raises:
          UsageError: It evaluates by the loss, and the trainer has none.
          ExamplesError: There are no examples.
        """
        if not isinstance(evaluation, Evaluation | EvaluationFunction):
            raise UsageError(
                f"Trainer.evaluate takes an evaluation; found {type(evaluation).__name__}.\n"
                '  Write trainer.evaluate(mw.Evaluation("loss", examples)).'
            )
        return scoring_of(evaluation, "evaluation", self._recipe.context())(self.state)

    def best(self, score: str | None = None, mode: Literal["min", "max"] | None = None) -> Variables[Params]:
        """Return the parameters, and the model state, of the checkpoint with the best evaluation. Collective.

        These are the values that were evaluated: averages, if the optimizer keeps averages.

        Args:
          score: The name of a score, such as `test/loss`. None means the score by which `save.keep` keeps the
            best.
          mode: "min" if the lowest value is best, "max" if the highest is. None takes the mode from `save` or
            from the name of the score.

        Raises:
          CheckpointError: No checkpoint has this score.
          UsageError: There is no workdir, or the score or its mode is not known.
        """
        target = self._recipe.target
        averaged = dataclasses.replace(target, opt_state=only_averages(target.opt_state))
        source = open_best(self._run_directory.shared_path("best"), score, mode)
        state = restore(source, averaged, ignore=".*")
        return Variables(eval_params(state), state.model_state)
