"""The names of `training` that other packages use. They are loaded when they are first used."""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.training._by_path import tables_in
    from meshwright.training._compile import (
        CompilerOptions,
        check_compiler_options,
        compile_cache,
        user_compile_cache,
    )
    from meshwright.training._divergence import check_finite, halt_on_divergence, not_finite
    from meshwright.training._ema import eval_params, only_averages
    from meshwright.training._heartbeat import on_board
    from meshwright.training._inferred import inferred_rules
    from meshwright.training._initial_values import Builder, InitialArrays, check_given, fill_state
    from meshwright.training._keys import as_seed, key_of, step_key
    from meshwright.training._loop import RUN_AHEAD, at_most_ahead, fit, nothing
    from meshwright.training._loss import Loss, StatefulLoss, of_loss
    from meshwright.training._noise import Std, relative_std, with_parameter_noise
    from meshwright.training._optimizers import has_multi_steps, init_optimizer, num_updates
    from meshwright.training._phase_clock import PHASES, PhaseClock
    from meshwright.training._pipeline._ring import Ring
    from meshwright.training._pipeline._schedule import OneForwardOneBackward, PipelineSchedule
    from meshwright.training._precision import ComputeDtype, check_dtypes, narrowing, wider_than
    from meshwright.training._remat import remat, remat_policy
    from meshwright.training._schedules import schedule
    from meshwright.training._state import (
        LAST_STEP,
        Init,
        Model,
        Params,
        TrainState,
        Variables,
        abstract_state,
        as_init,
        check_num_steps,
        init_state,
        state_from,
    )
    from meshwright.training._statistics import describe_state, num_params, state_sizes
    from meshwright.training._step import Step, make_step
    from meshwright.training._trainable import Chosen, Trainable, Tx, frozen_names, offload_opt_state
    from meshwright.training._watchdog import RunningWatchdog, timeouts, unwatched, watchdog
else:
    __getattr__, __dir__ = lazy_names(__name__)
