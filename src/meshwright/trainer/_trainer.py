"""`Trainer`: a loss, an optimizer and examples. Each method is a few lines over the rooms."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal

import jax
import optax

from meshwright import process
from meshwright.adapters import functional
from meshwright.checkpoint import Keep
from meshwright.deployer import Deployer
from meshwright.engine import Logging, Profile, Stop, Watchdog, comparable_settings, describe
from meshwright.functions import step_of
from meshwright.input import Collate
from meshwright.predictor import Predictor
from meshwright.sharding import Layout, Rules
from meshwright.train import Chosen, ComputeDtype, Params, Trainable, TrainState, Variables, narrowing
from meshwright.trainer._arguments import call_of
from meshwright.trainer._evaluation import Evaluated, best_of
from meshwright.trainer._fit import Progress, fit
from meshwright.trainer._place import Place
from meshwright.trainer._recipe import Recipe, both_losses
from meshwright.trainer._schedule import batch_sizes
from meshwright.trainer._start import Start, check_same, check_step, lost
from meshwright.tree import PyTree
from meshwright.unknown_arguments import explained
from meshwright.when import When

_LOGGING, _STOP, _NO_PROFILE, _WATCHDOG = Logging(), Stop(), Profile(), Watchdog()
_NO_SETTINGS = ("strict", "from_step")
_ARRAYS = ("self", "deployer", "params", "model_state", "opt_state", "last_ckpt_info", "name")
"""Arguments that are no settings."""


@explained
class Trainer(Generic[Params]):
    """Trains a model, anywhere. Functions of yours are called with those arguments that they name.

    Args:
      deployer: whose mesh, randomness, workdir and log to use.
      loss: returns a scalar or a `Mean` to be minimised, or that and `{name: scalar or Mean}`. It may name
        `params`, `model` (if there is one; called as `model(inputs)` with a batch, over which Equinox's
        modules, which take one example, are mapped), `batch`, `key`, `train` (False in evaluation), and
        `model_state` (then it returns the new one as a third value). Without it there is no `eval/loss`.
      optimizer: any optax transformation.
      collate: makes a dictionary of arrays of a list of examples; without it they are stacked.
      model: a Flax or Equinox model, a pair `(init, apply)`, or `mw.functional(...)` of one, which is also
        how a Linen module is given its example inputs.
      params, model_state, opt_state: to start from, of JAX or NumPy, instead of the model's own. Copied.
      last_ckpt_info: what `deployer.load_ckpt` returned with them: `fit` goes on after its `step`, with the
        epoch after its `epoch_idx`, where there is one.
      rules: how parameters are split over the mesh, before what is found by itself; None for no such rules;
        or a dictionary of these, `{"model": rules, "lora": None}`, by the keys of the parameters.
      trainable: a pattern of the names of the parameters to train; all others are frozen.
      compute_dtype: "bfloat16", or a table by path: wider floating parameters are cast to it for the loss.
      microbatches: in how many pieces, one after the other, the batch of a step is computed.
      train_step: a whole update of your own instead of the usual one: it may name `state`, `batch` and
        `key`, and returns the new state and `{name: scalar or Mean}`. Of complex parameters see `mw.Step`.
      lr_schedule: the learning rate as a function of the step, to be reported as `learning_rate` where the
        optimizer does not show its own, as those of optax do.
      name: the folder of the workdir that is this trainer's run directory; without it that is the workdir.
        Each of several trainers of a deployer with a workdir needs one of its own.

    Raises:
      UsageError: a function asks for what there is not, or there is nothing to start from.
      LayoutError: the parameters do not fit the mesh.

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
        name: str | None = None,
    ):
        given = {key: value for key, value in locals().items() if key not in _ARRAYS}
        self._settings = comparable_settings(given) if jax.process_count() > 1 else {}
        check_step(loss, train_step, microbatches)
        narrowing(compute_dtype)  # raises if it is no dtype
        self.deployer, self._place = deployer, Place(deployer, name)
        self._described = describe(given) if self._place.directory else ""
        self.name = "trainer" if name is None else name
        """Its name among the trainers of a deployer."""
        deployer.num_trainers += 1
        deployer.loops.join(self)
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
        )
        self._progress = Progress(position=start.position)

    @property
    def layout(self) -> Layout:
        """The layout of the arrays, by the rules given, then by those inferred from model and loss."""
        return self._recipe.layout

    @property
    def state(self) -> TrainState[Params]:
        """The state of training: what it starts from, or after the last whole step, however `fit` ended.

        Its arrays are those that `fit` goes on with, in their memory: copy what is to outlive the next `fit`.
        Set it to go on from another state of the same shapes, on this trainer's mesh.
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
        """Go on from a state of `step` updates: `read` returns it, given one like it as structs."""
        self._progress.state, self._progress.read, self._progress.first_step = None, read, step

    @property
    def params(self) -> Params:
        """The parameters, on the mesh: a tree like the one given, or of a model as `model.init` makes it."""
        return self.state.params

    @property
    def model_state(self) -> PyTree:
        """The model's state besides its parameters, such as batch statistics; None if it has none."""
        return self.state.model_state

    @property
    def step(self) -> int:
        """Updates made so far."""
        return int(self.state.step)

    @explained
    @process.shared_work()
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
        best: Mapping[str, Literal["min", "max"]] = {},
        save_when: int | When | None = None,
        keep_every_epochs: int | None = None,
        keep: int | Keep | None = None,
        shuffle: bool = True,
        logging: Logging = _LOGGING,
        stop: Stop = _STOP,
        profile: Profile = _NO_PROFILE,
        watchdog: Watchdog | None = _WATCHDOG,
        strict: bool = False,
        from_step: int | None = None,
    ) -> dict[str, float]:
        """Train, and return the scores of the last evaluation. Collective.

        A second call trains more, on whatever examples it is given; for equal shapes nothing is compiled
        again. Calls are numbered. Where a workdir holds a run, a process that begins anew makes the same
        calls: those that were finished return at once, and the one that was cut off goes on, in the middle of
        an epoch if need be, and comes to the same bits as if nothing had happened. The last of them trains
        more where it now asks for more.

        Args:
          train_examples: a list, a mapping of arrays or any other examples that `mw.batches` takes, those
            of `mw.Batched`, `mw.Bucketed` and `mw.mapped` too.
          per_device_batch_size: examples for each part into which the mesh splits a batch; a step takes
            `microbatches` times as many.
          batch_size: instead: examples of a step, whatever the mesh.
          epochs: how often this call reads all examples. What fills no batch at an epoch's end is left out.
          eval_examples: to evaluate on after each epoch, every one counted once, and after the last step.
          max_steps: updates of this call; besides `epochs`, or instead.
          eval_per_device_batch_size: examples that are evaluated at a time; as many as are trained on if not
            given. What a loss draws in evaluation goes by their number over all devices, and so not by the
            mesh where `batch_size` is given.
          eval_when: evaluate every so many steps, or as a policy says, rather than after each epoch.
          eval_loss: whether the loss and its metrics are among the scores. Say False where the loss cannot be
            computed on `eval_examples`, as on those without labels, and evaluate by predictions alone.
          eval_predictor: makes predictions of `eval_examples`, for `eval_metric_fn`.
          eval_metric_fn: returns numbers by name, of everything at once. It names any of `examples`,
            `preds` and `scores`, the loss and its metrics over all examples. With `scores` alone no predictor
            is needed: `lambda scores: {"perplexity": math.exp(scores["loss"])}`.
          best: the scores by which to keep the best checkpoint: `{"loss": "min", "accuracy": "max"}`.
          save_when: save every so many steps, or as a policy says, rather than after each epoch.
          keep_every_epochs: besides the newest and the best, keep those after every k epochs.
          keep: besides these, keep the newest so many, or what a policy keeps, such as
            `mw.checkpoint.multiples(1000)`.
          shuffle: read each epoch in an order of its own.
          logging: how often to report, and where to besides the deployer's log: `mw.Logging(every=10)`.
          stop: what ends training before its last step: a time, or scores that get no better, as
            `mw.Stop(max_seconds=3600, early=mw.early_stopping("eval/loss", "min", patience=3))`.
          profile: the steps of which profiles are taken, into the run directory: `mw.Profile((100,))`.
          watchdog: after how long a hang is told, `mw.Watchdog(600)`; None for never.
          strict: refuse to go on with other settings than the run was trained with so far.
          from_step: go back to this step's checkpoint, as `mw.run` does.

        Raises:
          UsageError, InputError, LayoutError: before the first step, if another run has the workdir, or if
            something does not fit or is not the same on all processes: all is tried, and a state saved.
          DivergedError: a reported loss, or a state that is to be saved, is not finite.
          Interrupted: the process was told to stop; the state is saved, if there is a workdir.
        """
        given = {key: value for key, value in locals().items() if key != "self"}
        call = call_of(self._recipe, given, has_directory=self._place.directory is not None)
        given = {key: value for key, value in given.items() if key not in _NO_SETTINGS}
        with process.sharing_errors():
            if jax.process_count() > 1:
                settings = self._settings | comparable_settings(given)
                process.compare("the settings of the trainer", lambda: settings)
            place = self._place.open(call.schedule.needs_workdir)
            described = lambda: self._described + describe({"fit": given})  # noqa: E731
            return fit(self._recipe, self._progress, call, lambda: self.state, place, described)

    @process.shared_work()
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
        """Return the scores of the parameters over examples, as `fit` finds them. Collective.

        Args: as those of `fit` for evaluation.

        Raises:
          UsageError: there is nothing to evaluate by; or as `fit`.
          ExamplesError: there are no examples.
        """
        ways = self.deployer.layout().batch_ways
        _, size = batch_sizes(per_device_batch_size, batch_size, ways)
        evaluated = Evaluated(self._recipe, examples, size, loss, predictor, metric_fn)
        return evaluated.scoring(best={})(self.state)

    def best(self, score: str | None = None, mode: Literal["min", "max"] | None = None) -> Variables[Params]:
        """Return the parameters, and the model state, of the checkpoint with the best evaluation. Collective.

        They are as they were evaluated: averages, if the optimizer keeps any.

        Args:
          score: the name of a score, such as `loss`. None stands for the one that `fit` was given as `best`.
          mode: whether its lowest or highest value is best. None takes it from `best` or from its name.

        Raises:
          CheckpointError: no checkpoint has this score.
          UsageError: there is no workdir; or nothing says which score is meant, or which values are better.
        """
        directory = self._place.checkpoints("best")
        return best_of(directory, self._recipe.target, score, mode)
