"""Names of settings and scores in runs of older versions, with their names of today.

Only code that reads run directories uses them. Users cannot give old names, and none are written.
"""

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

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
    "compile_cache": "compile.cache",
    "accumulate_grad_batches": "microbatches",
    "fit.n_epochs": "fit.epochs",
    "fit.log_every": "fit.logging.every",
    "fit.eval_every": "fit.eval_when",
    "fit.save_every": "fit.save_when",
    "fit.save_ckpt_every_k_epochs": "fit.keep_every_epochs",
}


def setting(path: str) -> str:
    """Return today's path of a setting: `evaluations.test.when` for `evalers.test.when`."""
    for old, new in _SETTINGS.items():
        if path == old or path.startswith(f"{old}."):
            return new + path.removeprefix(old)
    return path


_EVALUATED, _EVALUATED_BEFORE = "eval/", "eval_"
"""The prefix of the names of a `Trainer`'s scores, today and in older versions."""


def score(name: str) -> str:
    """Return today's name of a score: `eval/loss` for `eval_loss`."""
    is_old = name.startswith(_EVALUATED_BEFORE)
    return _EVALUATED + name.removeprefix(_EVALUATED_BEFORE) if is_old else name


def score_before(name: str) -> str:
    """Return the name of a score in older versions: `eval_loss` for `eval/loss`."""
    is_new = name.startswith(_EVALUATED)
    return _EVALUATED_BEFORE + name.removeprefix(_EVALUATED) if is_new else name


def both(scores: Mapping[str, T]) -> dict[str, T]:
    """Return scores by their stored names and, where these are old, by today's names, too."""
    return {score(name): value for name, value in scores.items()} | dict(scores)
