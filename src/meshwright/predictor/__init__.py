"""`Predictor`, the public class that computes predictions on a deployer's mesh.

It may import every room below it: `deployer`, `predict`, `evaluation`, `input`, `sharding`, `train`. The work
is done in `predict`, so add new behaviour there, and here only the argument that turns it on.
"""

from meshwright.predictor._predictor import Predictor

__all__ = ["Predictor"]
