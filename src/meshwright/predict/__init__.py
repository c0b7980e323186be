"""Predictions: any number of examples, padded, sharded, computed, gathered, in order."""

from meshwright.predict._fingerprint import fingerprint
from meshwright.predict._outputs import Outputs
from meshwright.predict._run import Predict, over_batches

__all__ = ["Outputs", "Predict", "fingerprint", "over_batches"]
