"""Scores of a state over examples: averages, metrics of all predictions, and outputs of each example.

`Measured` averages values of each example and `AverageLoss` the loss, `Metric` calls a function of all
predictions, `OutputFiles` writes outputs; `Scoring` puts them together for one evaluation, and
`scoring_by_function` makes one of any function of the parameters. `token_means` and
`perplexity` are functions for evaluations of language models. May import
`predict`, `train`, `input`, `sharding` and rooms below; knows neither `Experiment` nor `Trainer`. Add another
kind of score in a file of its own, and its place in `Scoring`.
"""

from meshwright.evaluation._evaluator import Evaluator
from meshwright.evaluation._files import OutputFiles
from meshwright.evaluation._function import ParamsFunction, scoring_by_function
from meshwright.evaluation._interruption import BeforeBatch, EvaluationInterrupted, calling_before_each
from meshwright.evaluation._loss import AverageLoss
from meshwright.evaluation._means import Scores
from meshwright.evaluation._measured import Measure, Measured, StatefulMeasure, evaluating
from meshwright.evaluation._metric import Metric, check_metric
from meshwright.evaluation._rows import ExampleFunction
from meshwright.evaluation._scoring import Scoring
from meshwright.evaluation._tokens import perplexity, token_means

__all__ = [
    "AverageLoss",
    "BeforeBatch",
    "EvaluationInterrupted",
    "Evaluator",
    "ExampleFunction",
    "Measure",
    "Measured",
    "Metric",
    "OutputFiles",
    "ParamsFunction",
    "Scores",
    "Scoring",
    "StatefulMeasure",
    "calling_before_each",
    "check_metric",
    "evaluating",
    "perplexity",
    "scoring_by_function",
    "token_means",
]
