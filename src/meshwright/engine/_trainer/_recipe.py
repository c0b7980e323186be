"""The parts of a trainer that do not depend on the examples: losses, optimizer, rules, first state."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any

import numpy as np
import optax

from meshwright.base._internal import PyTree, tree
from meshwright.data._internal import Collate
from meshwright.engine._adapters._functional import Functional
from meshwright.engine._compiler import StepOptions
from meshwright.engine._deployer._deployer import Deployer
from meshwright.engine._evaluation._loss import AverageLoss
from meshwright.engine._evaluation._parts import EvaluationContext
from meshwright.engine._functions import loss_of
from meshwright.engine._trainer._start import Start
from meshwright.errors import UsageError
from meshwright.parallel._internal import Layout, Rules, as_rules, in_mesh
from meshwright.processes._internal import When
from meshwright.training._internal import (
    ComputeDtype,
    Step,
    TrainState,
    Tx,
    abstract_state,
    inferred_rules,
    make_step,
)


@dataclass
class Recipe:
    """The arguments of a `Trainer`, checked, and the objects that are made from them once."""

    deployer: Deployer
    model: Functional | None
    start: Start
    tx: Tx
    losses: Mapping[bool, Callable[..., Any]]
    """The loss for training (key True) and for evaluation (key False); empty if none is given."""
    train_step: Callable[..., Any] | None
    collate: Collate | None
    rules: Rules
    compute_dtype: ComputeDtype
    accumulate: int
    lr_schedule: optax.Schedule | None
    compiler: StepOptions
    """The options of the compiler for the step. The compiler knows each of them."""
    _layout: Layout | None = None
    _steps: dict[str | None, Step] = field(default_factory=dict)
    _average_losses: dict[Any, AverageLoss] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The layout of the arrays on the mesh."""
        return self.lay_out()

    def lay_out(self, *batch: PyTree) -> Layout:
        """Return the layout of the arrays. The first call decides it."""
        if self._layout is None:
            with in_mesh(self.deployer.mesh):  # sharding constraints of the loss may need the mesh
                axes = self.model.axes if self.model else {}
                outline = self.start.outline()
                rules = as_rules(self.rules, outline.params)
                named, mesh = tree.named_leaves({"params": outline.params}), self.deployer.mesh
                if not all(any(rule(*leaf, mesh) is not None for rule in rules) for leaf in named.items()):
                    rules += inferred_rules(outline, self.losses.get(False), *batch, axes=axes)
            self._layout = self.deployer.layout(*rules)
        return self._layout

    @cached_property
    def target(self) -> TrainState:
        """The state of the trainer, as structs with shardings."""
        return abstract_state(self.start.init, self.tx, self.layout)

    def step(self, norms: str | None) -> Step:
        """Return the function that makes one update. It is compiled once for each shape of batches."""
        if norms not in self._steps:
            self._steps[norms] = step = self._new_step(norms)
            step.compiles_late = self.compiler.settings.late == "tell"
        return self._steps[norms]

    def _new_step(self, norms: str | None) -> Step:
        built = {"idle": self.deployer.tell_idle, "compiler_options": self.compiler.options}
        if self.train_step is not None:
            if norms is not None:
                raise UsageError(
                    "Logging.norms has no effect on a train_step: return the norms from it, as metrics."
                )
            return Step(self.train_step, self.layout, **built)
        options = {"microbatches": self.accumulate, "compute_dtype": self.compute_dtype, "norms": norms}
        return make_step(self.losses[True], self.tx, self.layout, **built, **options)

    @property
    def learning_rate(self) -> Callable[[int], float] | None:
        """Returns the learning rate of the update after a number of updates; None without a schedule."""
        if (schedule := self.lr_schedule) is None:
            return None
        return lambda updates: np.asarray(schedule(updates)).item()

    def context(self, batch_size: int | None = None, when: When | None = None) -> EvaluationContext:
        """Return the context of evaluations. It has the default batch size and policy."""
        return EvaluationContext(
            self.layout,
            self.deployer.seed,
            self.compute_dtype,
            batch_size,
            when,
            collate=self.collate,
            average_loss=self._average_loss if self.losses else None,
        )

    def _average_loss(self, dtype: ComputeDtype, params: Callable[[Any], PyTree]) -> AverageLoss:
        """Return the function that averages the loss over examples. It is compiled once for all calls."""
        key = repr(dtype), params
        if key not in self._average_losses:
            loss = _advising(self.losses[False])
            self._average_losses[key] = AverageLoss(loss, self.layout, self.deployer.seed, dtype, params)
        return self._average_losses[key]


def both_losses(
    loss: Callable[..., Any], model: Functional | None, has_state: bool
) -> dict[bool, Callable[..., Any]]:
    """Return a user's loss for training (key True) and for evaluation (key False)."""
    return {train: loss_of(loss, model, train=train, has_state=has_state) for train in (True, False)}


def _advising(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss for evaluation whose errors say how to evaluate without the loss."""

    @wraps(loss)
    def advised(*arguments: Any, **named: Any) -> Any:
        try:
            return loss(*arguments, **named)
        except Exception as error:
            error.add_note(
                "The error is from the loss in evaluation. If it cannot be computed on the examples, for "
                "instance without labels, write mw.Evaluation(None, examples, predict=..., metric_fn=...)."
            )
            raise

    return advised
