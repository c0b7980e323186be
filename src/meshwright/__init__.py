"""Train any JAX model on one device or thousands, with the same file.

Names are loaded when they are first used, so that `meshwright --help` need not wait for JAX. What
is listed here is what there is; rooms (`mw.input`, `mw.checkpoint` …) hold the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any

from meshwright._version import __version__

if TYPE_CHECKING:
    from meshwright import (
        adapters,
        arguments,
        arrays,
        checkpoint,
        engine,
        errors,
        events,
        experiment,
        formats,
        hlo,
        input,
        metrics,
        models,
        patterns,
        plan,
        process,
        profile,
        program,
        report,
        sharding,
        storage,
        train,
        tree,
        when,
    )
    from meshwright.adapters import functional
    from meshwright.arrays import restore
    from meshwright.checkpoint import Checkpoints
    from meshwright.deployer import Deployer
    from meshwright.engine import early_stopping
    from meshwright.errors import MeshwrightError
    from meshwright.experiment import Evaler, Experiment, Input, Save, from_checkpoint, open_averages, run
    from meshwright.formats import open_source
    from meshwright.input import Arrays, Batched, Bucketed, batches, mapped, padded_batches
    from meshwright.metrics import Console, Histogram, Mean, jsonl, logger, tee, tensorboard
    from meshwright.patterns import optional
    from meshwright.predictor import Predictor
    from meshwright.profile import tracer
    from meshwright.sharding import (
        Layout,
        auto,
        embedding_lookup,
        explain,
        fsdp,
        hardware,
        logical,
        make_mesh,
        match,
        override,
        shard_batch_dim,
    )
    from meshwright.train import (
        Evaluator,
        Step,
        Trainable,
        TrainState,
        Variables,
        abstract_state,
        by_path,
        check_finite,
        compile_cache,
        decay_by_path,
        ema_params,
        eval_params,
        fit,
        halt_on_divergence,
        init_state,
        keep_ema,
        make_step,
        mean_plus_std,
        offload_opt_state,
        relative_std,
        remat,
        scale_by_path,
        schedule,
        skip_exploding,
        state_from,
        update_rules,
        watchdog,
        with_parameter_noise,
    )
    from meshwright.trainer import Trainer
    from meshwright.when import Tick, any_of, at, every, every_minutes, never

# Written out, as type checkers run nothing: what is listed here is what they let users import.
__all__ = [
    "Arrays",
    "Batched",
    "Bucketed",
    "Checkpoints",
    "Console",
    "Deployer",
    "Evaler",
    "Evaluator",
    "Experiment",
    "Histogram",
    "Input",
    "Layout",
    "Mean",
    "MeshwrightError",
    "Predictor",
    "Save",
    "Step",
    "Tick",
    "TrainState",
    "Trainable",
    "Trainer",
    "Variables",
    "__version__",
    "abstract_state",
    "adapters",
    "any_of",
    "arguments",
    "arrays",
    "at",
    "auto",
    "batches",
    "by_path",
    "check_finite",
    "checkpoint",
    "compile_cache",
    "decay_by_path",
    "early_stopping",
    "ema_params",
    "embedding_lookup",
    "engine",
    "errors",
    "eval_params",
    "events",
    "every",
    "every_minutes",
    "experiment",
    "explain",
    "fit",
    "formats",
    "from_checkpoint",
    "fsdp",
    "functional",
    "halt_on_divergence",
    "hardware",
    "hlo",
    "init_state",
    "input",
    "jsonl",
    "keep_ema",
    "logger",
    "logical",
    "make_mesh",
    "make_step",
    "mapped",
    "match",
    "mean_plus_std",
    "metrics",
    "models",
    "never",
    "offload_opt_state",
    "open_averages",
    "open_source",
    "optional",
    "override",
    "padded_batches",
    "patterns",
    "plan",
    "process",
    "profile",
    "program",
    "relative_std",
    "remat",
    "report",
    "restore",
    "run",
    "scale_by_path",
    "schedule",
    "shard_batch_dim",
    "sharding",
    "skip_exploding",
    "state_from",
    "storage",
    "tee",
    "tensorboard",
    "tracer",
    "train",
    "tree",
    "update_rules",
    "watchdog",
    "when",
    "with_parameter_noise",
]  # fmt: skip

_NAMES = {
    "adapters": ("functional",),
    "arrays": ("restore",),
    "checkpoint": ("Checkpoints",),
    "engine": ("early_stopping",),
    "errors": ("MeshwrightError",),
    "experiment": (
        "Evaler",
        "Experiment",
        "Input",
        "Save",
        "from_checkpoint",
        "open_averages",
        "run",
    ),
    "formats": ("open_source",),
    "input": ("Arrays", "Batched", "Bucketed", "batches", "mapped", "padded_batches"),
    "metrics": ("Console", "Histogram", "Mean", "jsonl", "logger", "tee", "tensorboard"),
    "sharding": (
        "Layout",
        "auto",
        "override",
        "explain",
        "fsdp",
        "hardware",
        "logical",
        "embedding_lookup",
        "make_mesh",
        "match",
        "shard_batch_dim",
    ),
    "train": (
        "Evaluator",
        "Trainable",
        "Step",
        "TrainState",
        "Variables",
        "abstract_state",
        "by_path",
        "check_finite",
        "decay_by_path",
        "ema_params",
        "eval_params",
        "compile_cache",
        "fit",
        "halt_on_divergence",
        "init_state",
        "keep_ema",
        "make_step",
        "mean_plus_std",
        "with_parameter_noise",
        "offload_opt_state",
        "relative_std",
        "remat",
        "scale_by_path",
        "schedule",
        "skip_exploding",
        "state_from",
        "update_rules",
        "watchdog",
    ),
    "deployer": ("Deployer",),
    "patterns": ("optional",),
    "predictor": ("Predictor",),
    "profile": ("tracer",),
    "trainer": ("Trainer",),
    "when": ("Tick", "at", "any_of", "every", "every_minutes", "never"),
}
_HOMES = {name: room for room, names in _NAMES.items() for name in names}

# A type checker that saw these would take any name, also a mistyped one, for one of the package.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"meshwright.{_HOMES[name]}"), name)
        if name in __all__:
            return importlib.import_module(f"meshwright.{name}")
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
