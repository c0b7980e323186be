"""Names of settings in descriptions that older versions wrote, and what they are called now.

Only readers of run directories ask here: nothing that is written or given by a user has an old name.
"""

_SETTINGS = {
    "run": "workdir",
    "max_step": "max_steps",
    "evalers": "evaluations",
    "checkpoints": "save",
    "train_dtype": "compute_dtype",
    "save_input_iterator": "save.data_position",
    "max_seconds": "stop.max_seconds",
    "stop_early": "stop.early",
    "log_every": "logging.every",
    "norms": "logging.norms",
    "trackers": "logging.trackers",
    "start_trace_steps": "profile.steps",
    "num_trace_steps": "profile.num_steps",
    "start_trace_process_indices": "profile.processes",
    "watchdog_timeout_seconds": "watchdog.timeout_seconds",
    "crash_on_hang": "watchdog.kill",
    "accumulate_grad_batches": "microbatches",
    "fit.n_epochs": "fit.epochs",
    "fit.log_every": "fit.logging.every",
    "fit.eval_every": "fit.eval_when",
    "fit.save_every": "fit.save_when",
    "fit.save_ckpt_every_k_epochs": "fit.keep_every_epochs",
}


def setting(path: str) -> str:
    """Return the path of a setting as it is called now: `evaluations.test.when` of `evalers.test.when`."""
    for old, new in _SETTINGS.items():
        if path == old or path.startswith(f"{old}."):
            return new + path.removeprefix(old)
    return path
