"""Which checkpoints stay.

A policy is given the evaluation results saved with each complete checkpoint, by step, and returns
the steps to keep. The newest stays whatever it says.
"""

from collections.abc import Callable, Mapping

from meshwright.errors import UsageError

Scores = Mapping[str, float]
Keep = Callable[[Mapping[int, Scores]], set[int]]


def last(num_checkpoints: int) -> Keep:
    """Keep the newest `num_checkpoints`."""
    if num_checkpoints < 1:
        raise UsageError(f"last({num_checkpoints}): at least the newest checkpoint is kept.")
    return lambda scores: set(sorted(scores)[-num_checkpoints:])
