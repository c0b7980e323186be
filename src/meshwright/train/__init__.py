"""Training: the state, one step, the loop, evaluation, and learning rates."""

from meshwright.train._evaluate import Evaluator, Measure
from meshwright.train._loop import RUN_AHEAD, at_most_ahead, fit, nothing
from meshwright.train._loss import Loss, Metrics
from meshwright.train._schedules import schedule
from meshwright.train._state import Init, TrainState, Variables, abstract_state, init_state
from meshwright.train._step import Step, make_step

__all__ = [
    "RUN_AHEAD",
    "Evaluator",
    "Init",
    "Loss",
    "Measure",
    "Metrics",
    "Step",
    "TrainState",
    "Variables",
    "abstract_state",
    "at_most_ahead",
    "fit",
    "init_state",
    "make_step",
    "nothing",
    "schedule",
]
