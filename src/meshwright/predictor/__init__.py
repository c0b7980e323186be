"""`Predictor`: a trained model's answers to any number of examples."""

from meshwright.predictor._predictor import Predictor

__all__ = ["Predictor"]
