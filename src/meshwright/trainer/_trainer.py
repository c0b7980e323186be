"""`Trainer`: a loss, an optimizer and examples. Each method is a few lines over the rooms."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import optax

from meshwright import process
from meshwright.adapters import functional
from meshwright.checkpoint import Checkpoints, Keep
from meshwright.deployer import Deployer
from meshwright.functions import loss_of, step_of
from meshwright.input import Collate, numbered_batches
from meshwright.predictor import Predictor
from meshwright.sharding import Layout, Rule
from meshwright.train import (
    ComputeDtype,
    Only,
    Step,
    Trainable,
    TrainState,
    Variables,
    abstract_state,
    inferred_rules,
    make_step,
    narrowing,
)
from meshwright.trainer._alike import compare_fit, settings_among
from meshwright.trainer._checks import checks, structs_of, told
from meshwright.trainer._epochs import Epochs
from meshwright.trainer._evaluation import LossOver
from meshwright.trainer._loop import Loop
from meshwright.trainer._schedule import Schedule, batch_sizes
from meshwright.trainer._scores import Evaluation, Measure, OfPredictions, best_of, check_together
from meshwright.trainer._start import Start, check_schedule, check_step, checkpoints_in, lost
from meshwright.tree import PyTree
from meshwright.when import Tick, When

CHECKPOINTS = "checkpoints"  # in the workdir


class Trainer:
    """Trains a model, anywhere. Functions of yours are called with those arguments that they name.

    Args:
      deployer: whose mesh, randomness, workdir and log to use.
      loss: returns a scalar or a `Mean` to be minimised, or that and `{name: scalar or Mean}`. It may name
        `params`, `model` (if there is one; called as `model(inputs)` with a batch, over which Equinox's
        modules, which take one example, are mapped), `batch`, `rng`, `train` (False in evaluation), and
        `model_state` (then it returns the new one as a third value). Without it there is no `eval_loss`.
      optimizer: any optax transformation.
      collate: makes a dictionary of arrays of a list of examples; without it they are stacked.
      model: a Flax or Equinox model, a pair `(init, apply)`, or `mw.functional(...)` of one, which is also
        how a Linen module is given its example inputs.
      params, model_state, opt_state: to start from, of JAX or NumPy, instead of the model's own. Copied.
      last_ckpt_info: what `deployer.load_ckpt` returned with them: `fit` goes on after its `step`, with the
        epoch after its `epoch_idx`, where there is one.
      rules: how parameters are split over the mesh, before what is found by itself; None for no such rules.
      trainable: a pattern of the names of the parameters to train; all others are frozen.
      compute_dtype: "bfloat16", or a table by path: wider floating parameters are cast to it for the loss.
      accumulate_grad_batches: in how many pieces, one after the other, the batch of a step is computed.
      train_step: a whole update of your own instead of the usual one: it may name `state`, `batch` and
        `rng`, and returns the new state and `{name: scalar or Mean}`. Of complex parameters see `mw.Step`.
      lr_schedule: the learning rate as a function of the step, to be reported as `learning_rate`.

    Raises:
      UsageError: a function asks for what there is not, or there is nothing to start from.
      LayoutError: the parameters do not fit the mesh.
    """

    def __init__(
        self,
        deployer: Deployer,
        *,
        loss: Callable[..., Any] | None = None,
        optimizer: optax.GradientTransformation,
        collate: Collate | None = None,
        model: Any = None,
        params: PyTree = None,
        model_state: PyTree = None,
        opt_state: PyTree = None,
        last_ckpt_info: Mapping[str, Any] | None = None,
        rules: Sequence[Rule] | None = None,
        trainable: Trainable | None = None,
        compute_dtype: ComputeDtype = None,
        accumulate_grad_batches: int = 1,
        train_step: Callable[..., Any] | None = None,
        lr_schedule: optax.Schedule | None = None,
    ):
        self._settings = settings_among(locals())
        check_step(loss, train_step, accumulate_grad_batches)
        narrowing(compute_dtype)  # raises if it is no dtype
        self.deployer, self._collate = deployer, collate
        deployer.num_trainers += 1
        self.model = None if model is None else functional(model)
        self._start = Start(self.model, params, model_state, opt_state, last_ckpt_info)
        self._tx = optimizer if trainable is None else Only(trainable, optimizer)
        self._rules, self._dtype = tuple(rules or ()), compute_dtype
        self._accumulate, self._lr_schedule = accumulate_grad_batches, lr_schedule
        self._losses = {} if loss is None else {train: self._called(loss, train) for train in (True, False)}
        self._train_step = None if train_step is None else step_of(train_step)
        self._layout: Layout | None = None
        self._state: TrainState | None = None
        self._position: dict[str, Any] | None = self._start.position

    @property
    def layout(self) -> Layout:
        """Where arrays live: by the rules given, and what is found from the model and, in `fit`, the loss."""
        if self._layout is None:
            self._layout = self._lay_out()
        return self._layout

    @property
    def state(self) -> TrainState:
        """The state of training: what it starts from, or after the last whole step, however `fit` ended.

        Its arrays are those that `fit` goes on with, in their memory: copy what is to outlive the next `fit`.
        """
        if self._state is None:
            self._state = self._start.state(self._tx, self.deployer.seed, self.layout)
        if any(x.is_deleted() for x in jax.tree.leaves(self._state)):
            raise lost()
        return self._state

    @property
    def params(self) -> PyTree:
        """The parameters, on the mesh."""
        return self.state.params

    @property
    def model_state(self) -> PyTree:
        """The model's state besides its parameters, such as batch statistics; None if it has none."""
        return self.state.model_state

    @property
    def step(self) -> int:
        """Updates made so far."""
        return int(self.state.step)

    def fit(
        self,
        train_examples: Any,
        per_device_batch_size: int | None = None,
        n_epochs: int | None = None,
        eval_examples: Any = None,
        *,
        global_batch_size: int | None = None,
        max_steps: int | None = None,
        eval_per_device_batch_size: int | None = None,
        eval_every: int | When | None = None,
        eval_predictor: Predictor | None = None,
        eval_metric_fn: Callable[..., Mapping[str, float]] | None = None,
        best: Mapping[str, Literal["min", "max"]] = {},
        save_every: int | When | None = None,
        save_ckpt_every_k_epochs: int | None = None,
        keep: int | Keep | None = None,
        log_every: int = 50,
        shuffle: bool = True,
    ) -> dict[str, float]:
        """Train, and return the scores of the last evaluation. Collective.

        A workdir that holds a run is continued, in the middle of an epoch if need be: the same calls give the
        same bits as if nothing had happened. So does a second `fit`: `n_epochs` and `max_steps` are of all.

        Args:
          train_examples: a list, a mapping of arrays or any other examples that `mw.batches` takes, those
            of `mw.Batched`, `mw.Bucketed` and `mw.mapped` too.
          per_device_batch_size: examples for each part into which the mesh splits a batch; a step takes
            `accumulate_grad_batches` times as many.
          global_batch_size: instead: examples of a step, whatever the mesh.
          n_epochs: how often to read all examples. What fills no batch at the end of an epoch is left out.
          eval_examples: to evaluate on after each epoch, every one counted once, and after the last step.
          max_steps: updates in all; besides `n_epochs`, or instead.
          eval_every: evaluate every so many steps, or as a policy says, rather than after each epoch.
          eval_predictor: makes predictions of `eval_examples`, for
          eval_metric_fn: which names `examples` and `preds`, and returns numbers by name.
          best: the scores by which to keep the best checkpoint: `{"loss": "min", "accuracy": "max"}`.
          save_every: save every so many steps, or as a policy says, rather than after each epoch. The newest
            and the best are kept, and besides
          save_ckpt_every_k_epochs: those after every k epochs, and
          keep: what this policy keeps, `mw.checkpoint.multiples(1000)`, say; a number, the newest so many.
          log_every: steps between reports.
          shuffle: read each epoch in an order of its own.

        Raises:
          UsageError, InputError, LayoutError: before the first step, if another run has the workdir, or if
            something does not fit or is not the same on all processes: all is tried, and a state saved.
          DivergedError: a reported loss, or a state that is to be saved, is not finite.
          Interrupted: the process was told to stop; the state is saved, if there is a workdir.
        """
        settings = self._settings | settings_among(locals())
        schedule = Schedule(
            n_epochs, max_steps, eval_every, save_every, save_ckpt_every_k_epochs, log_every, best, keep
        )
        ways = self.deployer.layout().batch_ways
        per_device, size = batch_sizes(per_device_batch_size, global_batch_size, ways * self._accumulate)
        _, eval_size = batch_sizes(eval_per_device_batch_size or per_device, None, ways)
        with process.telling(), contextlib.ExitStack() as opened:
            data = opened.enter_context(self._data(train_examples, size, n_epochs, shuffle))
            compare_fit(settings, data, eval_examples)
            batch = structs_of(data.peek(), size)
            self._layout = self._layout or self._lay_out(batch)
            measures = self._measures(eval_examples, eval_size, eval_predictor, eval_metric_fn)
            evaluation = Evaluation(measures, schedule.evaluates(data))
            step, target = self._step(), abstract_state(self._start.init, self._tx, self.layout)
            check_schedule(self._lr_schedule, self._accumulate, target)
            step.compile(target, batch)
            for rows in data.shapes():
                step.compile(target, structs_of(rows, size))
            checkpoints = self._checkpoints(opened, schedule)
            state = self._first_state(target, data, checkpoints)
            for found in checks(batch, self._dtype, step, state, data, evaluation, best, checkpoints):
                self.deployer.log_info(f"✓ {found}")
            if schedule.is_done(self.step, data):
                self.deployer.log_info(f"step {self.step} is reached: {schedule.end} asks for nothing more")
                evaluation(Tick(self.step, last=True), state)
            else:
                rest = self.deployer, self._lr_schedule, size
                loop = Loop(step, data, schedule, evaluation, checkpoints, *rest)
                loop.run(state, lambda state: self._reach(state, data))
        return evaluation.newest

    def best(self, score: str, mode: Literal["min", "max"]) -> Variables:
        """Return the parameters, and the model state, of the checkpoint with the best evaluation. Collective.

        They are as they were evaluated: averages, if the optimizer keeps any.

        Raises:
          CheckpointError: no checkpoint has this score.
          UsageError: there is no workdir.
        """
        directory = self.deployer.shared_workdir("best") / CHECKPOINTS
        return best_of(directory, abstract_state(self._start.init, self._tx, self.layout), score, mode)

    def _called(self, loss: Callable[..., Any], train: bool) -> Callable[..., Any]:
        return loss_of(loss, self.model, train=train, has_state=self._start.has_state)

    def _lay_out(self, *batch: PyTree) -> Layout:
        with jax.set_mesh(self.deployer.mesh):  # the loss may constrain by bare PartitionSpecs
            axes = self.model.axes if self.model else {}
            rules = inferred_rules(self._start.outline(), self._losses.get(False), *batch, axes=axes)
        return self.deployer.layout(*self._rules, *rules)

    def _step(self) -> Step:
        if self._train_step is not None:
            return Step(self._train_step, self.layout, idle=self.deployer.tell_idle)
        options = {"microbatches": self._accumulate, "compute_dtype": self._dtype}
        return make_step(self._losses[True], self._tx, self.layout, idle=self.deployer.tell_idle, **options)

    def _data(
        self, examples: Any, size: int, n_epochs: int | None, shuffle: bool
    ) -> contextlib.closing[Epochs]:
        options = {"collate": self._collate, "seed": self.deployer.seed, "shuffle": shuffle}
        sharding = self.deployer.layout().batch_sharding
        return contextlib.closing(Epochs(examples, size, sharding, num_epochs=n_epochs, **options))

    def _measures(
        self, examples: Any, size: int, predictor: Predictor | None, metric_fn: Callable[..., Any] | None
    ) -> list[Measure]:
        check_together(examples, predictor, metric_fn)
        if examples is None:
            return []
        measures: list[Measure] = []
        if self._losses:
            sharding = self.layout.batch_sharding
            read = partial(numbered_batches, examples, size, sharding, collate=self._collate)
            measures.append(LossOver(self._losses[False], self.layout, read, self.deployer.seed, self._dtype))
        if predictor is not None and metric_fn is not None:
            measures.append(OfPredictions(predictor.of_state, metric_fn, examples, size))
        return measures

    def _checkpoints(self, opened: contextlib.ExitStack, schedule: Schedule) -> Checkpoints | None:
        if self.deployer.workdir is None and not schedule.needs_workdir:
            return None
        process.hold_run(workdir := self.deployer.shared_workdir("saving checkpoints"), opened)
        return opened.enter_context(checkpoints_in(workdir / CHECKPOINTS, schedule.keeps(), self._tx))

    def _first_state(self, target: TrainState, data: Epochs, checkpoints: Checkpoints | None) -> TrainState:
        """Return the state to go on from: the newest checkpoint's, the last `fit`'s, or the first."""
        if checkpoints and checkpoints.latest() is not None:
            self._state = None  # or there would be two of them in memory
        kept = lambda: self._kept(data)  # noqa: E731
        state = checkpoints.resume(target, data, otherwise=kept) if checkpoints else kept()
        self._reach(state, data)
        self.deployer.forget_after(self.step)
        for line in told(self.layout, target, data, checkpoints):
            self.deployer.log_info(line)
        return state

    def _kept(self, data: Epochs) -> TrainState:
        if self._position is not None:
            data.set_state(self._position)
        return self.state

    def _reach(self, state: TrainState, data: Epochs) -> None:
        self._state, self._position = state, data.get_state()
