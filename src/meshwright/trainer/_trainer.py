"""`Trainer`: a loss, an optimizer and examples. Each method is a few lines over the rooms."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
import optax

from meshwright.adapters import Functional, functional
from meshwright.checkpoint import Checkpoints, Keep
from meshwright.deployer import Deployer
from meshwright.errors import UsageError
from meshwright.functions import loss_of, step_of
from meshwright.input import Collate, batches, numbered_batches
from meshwright.predictor import Predictor
from meshwright.sharding import Layout, Rule, auto, copy_to, fsdp
from meshwright.train import (
    ComputeDtype,
    Only,
    Step,
    Trainable,
    TrainState,
    Variables,
    abstract_state,
    init_state,
    make_step,
    state_from,
)
from meshwright.trainer._epochs import Epochs, of_epoch, seed_of
from meshwright.trainer._evaluation import LossOver
from meshwright.trainer._examples import structs_of
from meshwright.trainer._fit import Schedule, at, batch_sizes, keeping, train
from meshwright.trainer._scores import Evaluation, Measure, OfPredictions, check_best
from meshwright.tree import PyTree


class Trainer:
    """Trains a model, anywhere. Functions of yours are called with those arguments that they name.

    Args:
      deployer: whose mesh, randomness, workdir and log to use.
      loss: returns a scalar or a `Mean` to be minimised, or that and `{name: scalar or Mean}`. It may name
        `params`, `model` (if there is one; called as `model(inputs)`), `batch`, `rng`, `train` (False in
        evaluation), and `model_state` (then it returns the new one as a third value).
      optimizer: any optax transformation.
      collate: makes a dictionary of arrays of a list of examples; without it they are stacked.
      model: a Flax or Equinox model, a pair `(init, apply)`, or `mw.functional(...)` of one, which is also
        how a Linen module is given its example inputs.
      params: parameters to start from, arrays of any sort, instead of the model's own. They are copied.
      model_state, opt_state: to start from, beside `params`.
      rules: how parameters are split over the mesh, before what is found by itself.
      trainable: a pattern of the names of the parameters to train; all others are frozen.
      compute_dtype: "bfloat16", or a table by path: wider floating parameters are cast to it for the loss.
      accumulate_grad_batches: in how many pieces, one after the other, each batch of a step is computed.
      train_step: a whole update of your own instead of the usual one: it may name `state`, `batch` and
        `rng`, and returns the new state and `{name: scalar or Mean}`.
      lr_schedule: the learning rate as a function of the step, to be reported as `learning_rate`.

    Raises:
      UsageError: a function asks for what there is not, or there is nothing to start from.
      LayoutError: the parameters do not fit the mesh.
    """

    def __init__(
        self,
        deployer: Deployer,
        *,
        loss: Callable[..., Any],
        optimizer: optax.GradientTransformation,
        collate: Collate | None = None,
        model: Any = None,
        params: PyTree = None,
        model_state: PyTree = None,
        opt_state: PyTree = None,
        rules: Sequence[Rule] = (),
        trainable: Trainable | None = None,
        compute_dtype: ComputeDtype = None,
        accumulate_grad_batches: int = 1,
        train_step: Callable[..., Any] | None = None,
        lr_schedule: optax.Schedule | None = None,
    ):
        self.deployer, self._collate = deployer, collate
        self.model = None if model is None else functional(model)
        self._tx = optimizer if trainable is None else Only(trainable, optimizer)
        self._given = None if params is None else Variables(params, model_state)
        self._opt_state, self._lr_schedule = opt_state, lr_schedule
        self._dtype, self._accumulate = compute_dtype, accumulate_grad_batches
        self._init, self._rules = _init(self.model, self._given), tuple(rules)
        has_state = self.model.stateful if self.model else model_state is not None
        self._losses = {x: loss_of(loss, self.model, train=x, has_state=has_state) for x in (True, False)}
        self._train_step = None if train_step is None else step_of(train_step)
        self._layout: Layout | None = None
        self._state: TrainState | None = None
        self._position: dict[str, Any] | None = None

    @property
    def layout(self) -> Layout:
        """Where arrays live: by the rules given, and what is found from the model and, in `fit`, the loss."""
        if self._layout is None:
            self._layout = self._lay_out()
        return self._layout

    @property
    def state(self) -> TrainState:
        """The state of training: what it starts from, or where the last `fit` left it."""
        if self._state is None:
            self._state = self._initial()
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
        eval_every: int | None = None,
        eval_predictor: Predictor | None = None,
        eval_metric_fn: Callable[..., Mapping[str, float]] | None = None,
        best: Mapping[str, Literal["min", "max"]] = {},
        save_every: int | None = None,
        save_ckpt_every_k_epochs: int | None = None,
        log_every: int = 50,
        shuffle: bool = True,
    ) -> dict[str, float]:
        """Train, and return the scores of the last evaluation. Collective.

        A workdir that holds a run is continued, in the middle of an epoch if need be: the same calls give the
        same numbers as if nothing had happened. The newest checkpoint and the best are kept.

        Args:
          train_examples: a list, a mapping of arrays, anything with `__len__` and `__getitem__`, a function
            that returns a new iterable each time, or a function of the epoch that returns any of these.
          per_device_batch_size: examples for each part into which the mesh splits a batch; a step takes
            `accumulate_grad_batches` times as many.
          global_batch_size: instead: examples of a step, whatever the mesh.
          n_epochs: how often to read all examples. What fills no batch at the end of an epoch is left out.
          eval_examples: to evaluate on after each epoch, every one counted once, and after the last step.
          max_steps: updates in all; besides `n_epochs`, or instead.
          eval_every: evaluate every so many steps, rather than after each epoch.
          eval_predictor: makes predictions of `eval_examples`, for
          eval_metric_fn: which names `examples` and `preds`, and returns numbers by name.
          best: by which scores to keep the best checkpoint, and whether "min" or "max" is best.
          save_every: save every so many steps, rather than after each epoch.
          save_ckpt_every_k_epochs: keep these, too.
          log_every: steps between reports.
          shuffle: read each epoch in an order of its own.

        Raises:
          UsageError, InputError, LayoutError: before the first step, if something does not fit: it reads a
            batch, compiles the step, opens the directory of checkpoints, and tries the evaluation, the
            predictor and the metrics.
          Interrupted: the process was told to stop; the state is saved.
          DivergedError: a reported loss is not finite; nothing was saved since.
        """
        schedule = Schedule(n_epochs, max_steps, eval_every, save_every, log_every)
        ways = self._accumulate * self.deployer.layout().batch_ways
        per_device, size = batch_sizes(per_device_batch_size, global_batch_size, ways)
        eval_size = eval_per_device_batch_size or per_device
        with contextlib.ExitStack() as opened:
            data = self._data(train_examples, size, n_epochs, shuffle)
            opened.enter_context(contextlib.closing(data))
            batch = structs_of(data.peek(), size)
            self._layout = self._layout or self._lay_out(batch)
            step, target = self._make_step(), abstract_state(self._init, self._tx, self.layout)
            step.compile(target, batch)
            measures = self._measures(eval_examples, eval_size, eval_predictor, eval_metric_fn)
            keep = keeping(best, save_ckpt_every_k_epochs)
            checkpoints = self._checkpoints(keep, needed=bool(best or save_every or save_ckpt_every_k_epochs))
            state = self._first_state(target, data, checkpoints and opened.enter_context(checkpoints))
            check_best(best, [name for measure in measures for name in measure.names(state)])
            evaluation, self._state = Evaluation(measures, at(eval_every, data)), None
            self._state = train(
                step,
                state,
                data,
                num_steps=schedule.num_steps(train_examples, size),
                schedule=schedule,
                evaluation=evaluation,
                checkpoints=checkpoints,
                write=self._write,
                batch_size=size,
                show=self.deployer.verbose,
            )
            self._position = data.get_state()
        return evaluation.newest

    def _lay_out(self, *batch: PyTree) -> Layout:
        """Return the mesh and rules; with the structs of a batch, the loss tells what parameters are for."""
        made = jax.eval_shape(self._init, jax.random.key(0))
        made = made if isinstance(made, Variables) else Variables(made, None)

        def loss(params: PyTree, *batch: PyTree) -> PyTree:
            return self._losses[False](params, *batch, jax.random.key(0), *_if_any(made.model_state))

        return self.deployer.layout(*self._rules, auto(made.params, loss if batch else None, *batch), fsdp())

    def _make_step(self) -> Step:
        if self._train_step is not None:
            return Step(self._train_step, self.layout)
        options = {"microbatches": self._accumulate, "compute_dtype": self._dtype}
        return make_step(self._losses[True], self._tx, self.layout, **options)

    def _initial(self) -> TrainState:
        seed = self.deployer.seed
        if self._given is None:
            return init_state(self._init, self._tx, seed, self.layout)
        state = state_from(self._given, self._tx, seed, self.layout)
        if self._opt_state is None:
            return state
        shardings = jax.tree.map(lambda x: x.sharding, state.opt_state)
        return dataclasses.replace(state, opt_state=copy_to(self._opt_state, shardings))

    def _first_state(self, target: TrainState, data: Epochs, checkpoints: Checkpoints | None) -> TrainState:
        """Return the state to go on from: the newest checkpoint's, the last `fit`'s, or a fresh one."""
        say = self.deployer.log_info
        table = self.layout.explain({"params": target.params})
        say(table, title=f"Parameters on mesh {dict(self.deployer.mesh.shape)}")
        state = checkpoints.resume(target, data, otherwise=lambda: self.state) if checkpoints else self.state
        for warning in checkpoints.passed_over if checkpoints else ():
            say(warning)
        if checkpoints and checkpoints.resumed is not None:
            say(f"continuing after step {checkpoints.resumed}, in epoch {data.epoch}")
            self.deployer.forget_after(checkpoints.resumed)
        elif self._position is not None:
            data.set_state(self._position)
        return state

    def _data(self, examples: Any, size: int, n_epochs: int | None, shuffle: bool) -> Epochs:
        def of(epoch: int) -> Any:
            seed = seed_of(self.deployer.seed, epoch) if shuffle else None
            sharding = self.layout.batch_sharding
            return batches(
                of_epoch(examples, epoch), size, sharding, collate=self._collate, seed=seed, epochs=1
            )

        return Epochs(of, n_epochs)

    def _measures(
        self, examples: Any, size: int, predictor: Predictor | None, metric_fn: Callable[..., Any] | None
    ) -> list[Measure]:
        if examples is None:
            return []
        size *= self.layout.batch_ways
        read = partial(numbered_batches, examples, size, self.layout.batch_sharding, collate=self._collate)
        measures: list[Measure] = [
            LossOver(self._losses[False], self.layout, read, self.deployer.seed, self._dtype)
        ]
        if metric_fn is not None and predictor is None:
            raise UsageError("eval_metric_fn needs predictions: give eval_predictor=mw.Predictor(...), too.")
        if metric_fn is not None and predictor is not None:
            measures.append(OfPredictions(predictor.of_state, metric_fn, examples, size))
        return measures

    def _checkpoints(self, keep: Keep, *, needed: bool) -> Checkpoints | None:
        if self.deployer.workdir is None:
            if needed:
                raise UsageError("there is no directory to save checkpoints in: give Deployer(workdir=...).")
            return None
        return Checkpoints(self.deployer.shared_workdir("a run's checkpoints") / "checkpoints", keep=keep)

    def _write(self, step: int, values: Mapping[str, float], /) -> None:
        """Send a report to the deployer's files and trackers."""
        if self._lr_schedule is not None and "loss" in values:
            values = {**values, "learning_rate": np.asarray(self._lr_schedule(step - 1)).item()}
        self.deployer.write(step, values)


def _init(model: Functional | None, given: Variables | None) -> Callable[[jax.Array], PyTree]:
    if given is not None:
        return lambda key: given
    if model is None:
        raise UsageError("there are no parameters to train: give Trainer a model or params.")
    return model.init


def _if_any(model_state: PyTree) -> tuple[PyTree, ...]:
    return () if model_state is None else (model_state,)
