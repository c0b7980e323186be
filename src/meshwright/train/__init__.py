"""Training: the state, one step, the loop, evaluation, and learning rates."""

from meshwright.train._compile_cache import compile_cache
from meshwright.train._evaluate import Evaluator, Measure, StatefulMeasure
from meshwright.train._loop import RUN_AHEAD, at_most_ahead, fit, nothing
from meshwright.train._loss import Loss, Metrics, StatefulLoss
from meshwright.train._precision import narrowed
from meshwright.train._schedules import schedule
from meshwright.train._state import Init, TrainState, Variables, abstract_state, init_state, state_from
from meshwright.train._statistics import describe_state, num_params, state_sizes
from meshwright.train._step import Step, StepFunction, make_step
from meshwright.train._trainable import Only, Trainable, Tx
from meshwright.train._watchdog import Watchdog, watchdog

__all__ = [
    "RUN_AHEAD",
    "Evaluator",
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
    "Watchdog",
    "abstract_state",
    "at_most_ahead",
    "compile_cache",
    "describe_state",
    "fit",
    "init_state",
    "make_step",
    "narrowed",
    "nothing",
    "num_params",
    "schedule",
    "state_from",
    "state_sizes",
    "watchdog",
]
