"""Predictions for any number of examples, in order, and the file that they can be written to.

`_run` compiles a predict function and calls it batch by batch, `_outputs` writes predictions as JSON Lines,
`_fingerprint` identifies the parameters that made them. May import `sharding`, `train`, `process` and ground
rooms; knows neither a deployer nor a trainer. Add another file format for predictions beside `_outputs`.
"""

from meshwright.predict._fingerprint import fingerprint
from meshwright.predict._outputs import Outputs
from meshwright.predict._run import BatchedPredict, Predict, Predictions, check_rows, rows_of

__all__ = ["BatchedPredict", "Outputs", "Predict", "Predictions", "check_rows", "fingerprint", "rows_of"]
