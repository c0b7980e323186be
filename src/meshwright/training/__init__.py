"""The state, one step, the loop, and wrappers of optimizers.

    _state, _step, _loss       the state, an update, and its gradients
    _loop, _watchdog           the steps, and the end of a run that hangs
    _ema, _noise, _guard, …    wrappers of optimizers and losses, one file for each
    _pipeline/                 stages of a pipeline and their schedules
    _compile                   options of the compiler, and compiled programs on disk

It imports nothing of `data` and nothing of `checkpoints`: the loop gets its batches and a function that
saves.
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.training._by_path import by_path, decay_by_path, scale_by_path
    from meshwright.training._divergence import check_finite
    from meshwright.training._ema import ema_params, eval_params, keep_ema
    from meshwright.training._guard import mean_plus_std, skip_exploding
    from meshwright.training._initial_values import state_around
    from meshwright.training._keys import key_of
    from meshwright.training._learning_rates import learning_rates
    from meshwright.training._loop import at_most_ahead, check_equal_start, count_check, with_equal_end
    from meshwright.training._loss import Loss, StatefulLoss
    from meshwright.training._noise import with_parameter_noise
    from meshwright.training._phase_clock import PHASES
    from meshwright.training._pipeline._ring import Ring
    from meshwright.training._pipeline._schedule import OneForwardOneBackward
    from meshwright.training._remat import remat
    from meshwright.training._schedules import schedule
    from meshwright.training._state import Variables, abstract_state, init_state, state_from
    from meshwright.training._statistics import describe_state, num_params
    from meshwright.training._step import Step
    from meshwright.training._trainable import Trainable, offload_opt_state, update_rules
    from meshwright.training._watchdog import watchdog
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PHASES",
    "Loss",
    "OneForwardOneBackward",
    "Ring",
    "StatefulLoss",
    "Step",
    "Trainable",
    "Variables",
    "abstract_state",
    "at_most_ahead",
    "by_path",
    "check_equal_start",
    "check_finite",
    "count_check",
    "decay_by_path",
    "describe_state",
    "ema_params",
    "eval_params",
    "init_state",
    "keep_ema",
    "key_of",
    "learning_rates",
    "mean_plus_std",
    "num_params",
    "offload_opt_state",
    "remat",
    "scale_by_path",
    "schedule",
    "skip_exploding",
    "state_around",
    "state_from",
    "update_rules",
    "watchdog",
    "with_equal_end",
    "with_parameter_noise",
]
