"""Cases that are alike: some are `slow`, so that CI tries them, and the others `nightly`."""

import itertools

import pytest


def case(values, is_slow):
    return pytest.param(*values, marks=pytest.mark.slow if is_slow else pytest.mark.nightly)


def slow_first(*cases):
    """Return the cases of one argument, of which the first is slow and the others are nightly."""
    return [case([value], value is cases[0]) for value in cases]


def pairs(first, second, slow=None):
    """Return the cases of all pairs.

    Args:
      first: The values of the first argument; a tuple stands for several arguments.
      second: The values of the second argument, likewise.
      slow: The pairs that are slow; by default some that have each value of both.
    """
    shorter = min(len(first), len(second))
    numbered = itertools.product(range(len(first)), range(len(second)))
    slow = slow or [(first[i], second[j]) for i, j in numbered if i % shorter == j % shorter]
    every_pair = [*itertools.product(first, second)]
    assert set(slow) <= set(every_pair)
    as_tuple = lambda value: value if isinstance(value, tuple) else (value,)
    return [case((*as_tuple(one), *as_tuple(other)), (one, other) in slow) for one, other in every_pair]
