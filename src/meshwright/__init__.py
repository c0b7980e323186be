"""Train any JAX model on one device or thousands, with the same file.

The most used names are here. Rooms, such as `mw.input` and `mw.checkpoint`, contain the rest. Names are
loaded when they are first used, so that `meshwright --help` does not wait for JAX.
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
        corpus,
        engine,
        errors,
        evaluation,
        events,
        experiment,
        exports,
        formats,
        generation,
        hlo,
        input,
        launch,
        machine,
        metrics,
        models,
        nn,
        patterns,
        plan,
        process,
        profile,
        program,
        replay,
        report,
        server,
        sharding,
        storage,
        tokens,
        train,
        tree,
        tuning,
        when,
    )
    from meshwright.adapters import functional
    from meshwright.arrays import restore
    from meshwright.checkpoint import Checkpoints, InMemory
    from meshwright.deployer import Deployer
    from meshwright.engine import Compile, Logging, Profile, Spikes, Stop, Watchdog, early_stopping
    from meshwright.errors import MeshwrightError
    from meshwright.experiment import (
        Evaluation,
        EvaluationFunction,
        Experiment,
        Generation,
        Input,
        Save,
        evaluate,
        from_checkpoint,
        run,
    )
    from meshwright.exports import export
    from meshwright.formats import open_source
    from meshwright.generation import Decoding, generate, lm_eval, score
    from meshwright.input import Batched, Bucketed, batches, mapped, mixture, text
    from meshwright.metrics import Mean
    from meshwright.nn import attention, cross_entropy, layers, moe
    from meshwright.patterns import optional
    from meshwright.predictor import Predictor
    from meshwright.sharding import Layout, auto, make_mesh, match, override
    from meshwright.tokens import chat, train_tokenizer
    from meshwright.train import Step, Trainable, TrainState, fit, make_step
    from meshwright.trainer import Trainer
    from meshwright.tuning import lora

_MORE_ROOMS = (
    "adapters",
    "arguments",
    "arrays",
    "corpus",
    "engine",
    "evaluation",
    "events",
    "experiment",
    "exports",
    "formats",
    "generation",
    "hlo",
    "launch",
    "machine",
    "nn",
    "patterns",
    "profile",
    "program",
    "replay",
    "report",
    "server",
    "storage",
    "tokens",
    "tuning",
)
"""Rooms that are rarely needed by name, and so are not in `__all__`."""

# Written out, because type checkers do not run code: they let users import what is listed here.
__all__ = [
    "Batched",
    "Bucketed",
    "Checkpoints",
    "Compile",
    "Decoding",
    "Deployer",
    "Evaluation",
    "EvaluationFunction",
    "Experiment",
    "Generation",
    "InMemory",
    "Input",
    "Layout",
    "Logging",
    "Mean",
    "MeshwrightError",
    "Predictor",
    "Profile",
    "Save",
    "Spikes",
    "Step",
    "Stop",
    "TrainState",
    "Trainable",
    "Trainer",
    "Watchdog",
    "__version__",
    "attention",
    "auto",
    "batches",
    "chat",
    "checkpoint",
    "cross_entropy",
    "early_stopping",
    "errors",
    "evaluate",
    "export",
    "fit",
    "from_checkpoint",
    "functional",
    "generate",
    "input",
    "layers",
    "lm_eval",
    "lora",
    "make_mesh",
    "make_step",
    "mapped",
    "match",
    "metrics",
    "mixture",
    "models",
    "moe",
    "open_source",
    "optional",
    "override",
    "plan",
    "process",
    "restore",
    "run",
    "score",
    "sharding",
    "text",
    "train",
    "train_tokenizer",
    "tree",
    "when",
]

_NAMES = {
    "adapters": ("functional",),
    "arrays": ("restore",),
    "checkpoint": ("Checkpoints", "InMemory"),
    "deployer": ("Deployer",),
    "engine": ("Compile", "Logging", "Profile", "Spikes", "Stop", "Watchdog", "early_stopping"),
    "errors": ("MeshwrightError",),
    "experiment": (
        *("Evaluation", "EvaluationFunction", "Experiment", "Generation", "Input", "Save"),
        *("evaluate", "from_checkpoint", "run"),
    ),
    "exports": ("export",),
    "formats": ("open_source",),
    "generation": ("Decoding", "generate", "lm_eval", "score"),
    "input": ("Batched", "Bucketed", "batches", "mapped", "mixture", "text"),
    "metrics": ("Mean",),
    "nn": ("attention", "cross_entropy", "layers", "moe"),
    "patterns": ("optional",),
    "predictor": ("Predictor",),
    "sharding": ("Layout", "auto", "make_mesh", "match", "override"),
    "tokens": ("chat", "train_tokenizer"),
    "train": ("Step", "TrainState", "Trainable", "fit", "make_step"),
    "trainer": ("Trainer",),
    "tuning": ("lora",),
}
_HOMES = {name: room for room, names in _NAMES.items() for name in names}

# Hidden from type checkers: with `__getattr__` they would accept any name, also a mistyped one.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(f"meshwright.{_HOMES[name]}"), name)
        if name in __all__ or name in _MORE_ROOMS:
            return importlib.import_module(f"meshwright.{name}")
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return __all__
