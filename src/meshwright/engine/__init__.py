"""A run: its engine, and its two descriptions, `Experiment` and `Trainer`.

_run, _hooks, _training    the engine: directory, checks, evaluations, the loop, stopping, the record
_experiment/               the whole description of a run, made into parts for the engine
_trainer/, _deployer/      RedCoast's classes on the same engine
_evaluation/, _predict/    scores of a state over examples, and predictions in order, with `Predictor`
_adapters/                 models of Flax and Equinox as plain functions, one file for each library
_exports/                  programs in one file with their weights
"""

from typing import TYPE_CHECKING

from meshwright._lazy import lazy_names

if TYPE_CHECKING:
    from meshwright.engine._adapters._functional import Functional
    from meshwright.engine._describe import describe
    from meshwright.engine._evaluation._description import EvaluationFunction
    from meshwright.engine._evaluation._evaluator import Evaluator
    from meshwright.engine._evaluation._tokens import perplexity, token_means
    from meshwright.engine._experiment._builders import (
        chain,
        from_checkpoint,
        open_averages,
        replace_prefix,
        truncate,
        truncate_left,
    )
    from meshwright.engine._exports._export import PLATFORMS, export
    from meshwright.engine._exports._load import load_program
    from meshwright.engine._outcome import Outcome
    from meshwright.engine._policies import when_evaluated
    from meshwright.engine._samples import Samples
    from meshwright.engine._spikes import Spikes
    from meshwright.engine._stopping import early_stopping
    from meshwright.processes._internal import Tick, any_of, at, every, every_minutes, never, whenever_free
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "PLATFORMS",
    "EvaluationFunction",
    "Evaluator",
    "Functional",
    "Outcome",
    "Samples",
    "Spikes",
    "Tick",
    "any_of",
    "at",
    "chain",
    "describe",
    "early_stopping",
    "every",
    "every_minutes",
    "export",
    "from_checkpoint",
    "load_program",
    "never",
    "open_averages",
    "perplexity",
    "replace_prefix",
    "token_means",
    "truncate",
    "truncate_left",
    "when_evaluated",
    "whenever_free",
]
