"""Training: the state, one step, the loop, and what an optimizer may be wrapped in.

`_state` makes the state, `_step` compiles an update, `_loss` computes gradients, `_loop` runs the steps,
`_watchdog` and `_divergence` guard a run. May import `sharding`, `program`, `metrics`, `process` and ground
rooms; knows no files and no examples. Add a wrapper of optimizers or losses in a file of its own, as `_ema`
and `_noise`.
"""

from meshwright.train._by_path import ByPath, by_path, decay_by_path, scale_by_path, tables_in
from meshwright.train._compile_cache import compile_cache, user_compile_cache
from meshwright.train._compiler_options import CompilerOptions, check_compiler_options
from meshwright.train._divergence import check_finite, halt_on_divergence, not_finite
from meshwright.train._ema import EmaState, ema_params, eval_params, keep_ema, only_averages
from meshwright.train._given import Builder, InitialArrays, check_given, fill_state, state_around
from meshwright.train._guard import Norms, SkipState, Threshold, mean_plus_std, skip_exploding
from meshwright.train._inferred import inferred_rules
from meshwright.train._keys import as_seed, key_of, step_key
from meshwright.train._learning_rates import learning_rates
from meshwright.train._loop import RUN_AHEAD, at_most_ahead, fit, nothing
from meshwright.train._loss import Loss, Metrics, StatefulLoss, of_loss
from meshwright.train._multi_steps import has_multi_steps, num_updates
from meshwright.train._noise import Std, relative_std, with_parameter_noise
from meshwright.train._on_board import on_board
from meshwright.train._phase_clock import PHASES, PhaseClock
from meshwright.train._precision import ComputeDtype, check_dtypes, narrowed, narrowing, wider_than
from meshwright.train._remat import RematPolicy, remat, remat_policy
from meshwright.train._ring import Ring
from meshwright.train._schedule import OneForwardOneBackward, PipelineSchedule
from meshwright.train._schedules import schedule
from meshwright.train._state import (
    LAST_STEP,
    Init,
    Model,
    Params,
    TrainState,
    Variables,
    abstract_state,
    as_init,
    check_num_steps,
    init_optimizer,
    init_state,
    state_from,
)
from meshwright.train._statistics import describe_state, num_params, state_sizes
from meshwright.train._step import Step, StepFunction, make_step
from meshwright.train._trainable import (
    Chosen,
    Trainable,
    Tx,
    UpdateRule,
    frozen_names,
    offload_opt_state,
    update_rules,
)
from meshwright.train._watchdog import RunningWatchdog, Timeouts, timeouts, unwatched, watchdog

__all__ = [
    "LAST_STEP",
    "PHASES",
    "RUN_AHEAD",
    "Builder",
    "ByPath",
    "Chosen",
    "CompilerOptions",
    "ComputeDtype",
    "EmaState",
    "Init",
    "InitialArrays",
    "Loss",
    "Metrics",
    "Model",
    "Norms",
    "OneForwardOneBackward",
    "Params",
    "PhaseClock",
    "PipelineSchedule",
    "RematPolicy",
    "Ring",
    "RunningWatchdog",
    "SkipState",
    "StatefulLoss",
    "Std",
    "Step",
    "StepFunction",
    "Threshold",
    "Timeouts",
    "TrainState",
    "Trainable",
    "Tx",
    "UpdateRule",
    "Variables",
    "abstract_state",
    "as_init",
    "as_seed",
    "at_most_ahead",
    "by_path",
    "check_compiler_options",
    "check_dtypes",
    "check_finite",
    "check_given",
    "check_num_steps",
    "compile_cache",
    "decay_by_path",
    "describe_state",
    "ema_params",
    "eval_params",
    "fill_state",
    "fit",
    "frozen_names",
    "halt_on_divergence",
    "has_multi_steps",
    "inferred_rules",
    "init_optimizer",
    "init_state",
    "keep_ema",
    "key_of",
    "learning_rates",
    "make_step",
    "mean_plus_std",
    "narrowed",
    "narrowing",
    "not_finite",
    "nothing",
    "num_params",
    "num_updates",
    "of_loss",
    "offload_opt_state",
    "on_board",
    "only_averages",
    "relative_std",
    "remat",
    "remat_policy",
    "scale_by_path",
    "schedule",
    "skip_exploding",
    "state_around",
    "state_from",
    "state_sizes",
    "step_key",
    "tables_in",
    "timeouts",
    "unwatched",
    "update_rules",
    "user_compile_cache",
    "watchdog",
    "wider_than",
    "with_parameter_noise",
]
