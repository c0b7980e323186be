"""Cases of all pairs of two lists, of which CI tries those that have each value of both."""

import pytest


def pairs(first, second):
    """Return the cases of all pairs; those that `make soak` alone tries are marked `long`.

    Args:
      first: The values of the first argument; a tuple stands for several arguments.
      second: The values of the second argument, likewise.
    """
    shorter = min(len(first), len(second))
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            *(other if isinstance(other, tuple) else (other,)),
            marks=() if i % shorter == j % shorter else pytest.mark.long,
        )
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]
