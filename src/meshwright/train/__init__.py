"""Training: the state, one step, the loop, evaluation, and learning rates."""

from meshwright.train._evaluate import Evaluator, Measure, StatefulMeasure
from meshwright.train._given import Builder, Given, check_given, state_around
from meshwright.train._loop import RUN_AHEAD, at_most_ahead, fit, nothing
from meshwright.train._loss import Loss, Metrics, StatefulLoss
from meshwright.train._precision import floating, narrowed
from meshwright.train._schedules import schedule
from meshwright.train._state import Init, TrainState, Variables, abstract_state, init_state, state_from
from meshwright.train._step import Step, StepFunction, make_step
from meshwright.train._trainable import Only, Trainable, Tx

__all__ = [
    "RUN_AHEAD",
    "Builder",
    "Evaluator",
    "Given",
    "Init",
    "Loss",
    "Measure",
    "Metrics",
    "Only",
    "StatefulLoss",
    "StatefulMeasure",
    "Step",
    "StepFunction",
    "TrainState",
    "Trainable",
    "Tx",
    "Variables",
    "abstract_state",
    "at_most_ahead",
    "check_given",
    "fit",
    "floating",
    "init_state",
    "make_step",
    "narrowed",
    "nothing",
    "schedule",
    "state_around",
    "state_from",
]
