"""The parts of a trainer that do not depend on the examples: losses, optimizer, rules, first state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import optax

from meshwright.adapters import Functional
from meshwright.deployer import Deployer
from meshwright.errors import UsageError
from meshwright.evaluation import LossOver
from meshwright.functions import loss_of
from meshwright.input import Collate
from meshwright.sharding import Layout, Rules, as_rules
from meshwright.train import (
    ComputeDtype,
    Step,
    TrainState,
    Tx,
    abstract_state,
    inferred_rules,
    make_step,
)
from meshwright.trainer._start import Start
from meshwright.tree import PyTree


@dataclass
class Recipe:
    """The arguments of a `Trainer`, checked, and what is made of them once."""

    deployer: Deployer
    model: Functional | None
    start: Start
    tx: Tx
    losses: Mapping[bool, Callable[..., Any]]
    """By whether it is for training; none where there is a `train_step`."""
    train_step: Callable[..., Any] | None
    collate: Collate | None
    rules: Rules
    compute_dtype: ComputeDtype
    accumulate: int
    lr_schedule: optax.Schedule | None
    _layout: Layout | None = None
    _steps: dict[str | None, Step] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The layout of the arrays on the mesh."""
        return self.lay_out()

    def lay_out(self, *batch: PyTree) -> Layout:
        """Return where arrays live, decided once: by the rules, and by what the loss does with a batch."""
        if self._layout is None:
            with jax.set_mesh(self.deployer.mesh):  # the loss may constrain by bare PartitionSpecs
                axes = self.model.axes if self.model else {}
                outline = self.start.outline()
                rules = inferred_rules(outline, self.losses.get(False), *batch, axes=axes)
            self._layout = self.deployer.layout(*as_rules(self.rules, outline.params), *rules)
        return self._layout

    @cached_property
    def target(self) -> TrainState:
        """The state as structs."""
        return abstract_state(self.start.init, self.tx, self.layout)

    def step(self, norms: str | None) -> Step:
        """Return one update, compiled once for all batches of a shape, which reports these norms.

        Raises:
          UsageError: the update is a function of the user's, which reports what it does, and norms are asked.
        """
        if norms not in self._steps:
            self._steps[norms] = self._step(norms)
        return self._steps[norms]

    def _step(self, norms: str | None) -> Step:
        if self.train_step is not None:
            if norms is not None:
                raise UsageError(
                    "Logging.norms: a train_step of your own returns the metrics that it reports."
                )
            return Step(self.train_step, self.layout, idle=self.deployer.tell_idle)
        options = {"microbatches": self.accumulate, "compute_dtype": self.compute_dtype, "norms": norms}
        return make_step(self.losses[True], self.tx, self.layout, idle=self.deployer.tell_idle, **options)

    @cached_property
    def loss_over(self) -> LossOver:
        """The loss over examples to evaluate on, compiled once. There must be one."""
        loss = _advising(self.losses[False])
        return LossOver(loss, self.layout, self.deployer.seed, self.compute_dtype)


def both_losses(
    loss: Callable[..., Any], model: Functional | None, has_state: bool
) -> dict[bool, Callable[..., Any]]:
    """Return a user's loss for training (True) and for evaluation (False).

    Raises:
      UsageError: it asks for what there is not.
    """
    return {train: loss_of(loss, model, train=train, has_state=has_state) for train in (True, False)}


def _advising(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss of evaluation whose errors say what to do where it cannot be computed."""

    def advised(*arguments: Any) -> Any:
        try:
            return loss(*arguments)
        except Exception as error:
            error.add_note(
                "in the loss of evaluation. Where it cannot be computed on the examples, as on those without "
                "labels, leave it out: eval_loss=False, with eval_predictor and eval_metric_fn."
            )
            raise

    return advised
