"""Predictions: any number of examples, padded, sharded, computed, gathered, in order."""

from meshwright.predict._outputs import Outputs
from meshwright.predict._run import Predict, predictions

__all__ = ["Outputs", "Predict", "predictions"]
