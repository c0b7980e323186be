"""Predictions: any number of examples, padded, sharded, computed, gathered, in order."""

from meshwright.predict._fingerprint import fingerprint
from meshwright.predict._outputs import Outputs
from meshwright.predict._run import OverBatches, Predict, Predictions, check_rows, rows_of

__all__ = ["Outputs", "OverBatches", "Predict", "Predictions", "check_rows", "fingerprint", "rows_of"]
