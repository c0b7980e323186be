"""Predictions: any number of examples, padded, sharded, computed, gathered, in order."""

from meshwright.predict._fingerprint import fingerprint
from meshwright.predict._outputs import Outputs
from meshwright.predict._run import Predict, check_rows, over_batches

__all__ = ["Outputs", "Predict", "check_rows", "fingerprint", "over_batches"]
