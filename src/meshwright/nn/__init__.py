"""Functions that models are made of, where the obvious form costs too much memory.

`attention` holds no array of queries × keys, however long the rows. May import ground rooms. A new function
is a file here.
"""

from meshwright.nn._attention import Bias, attention

__all__ = ["Bias", "attention"]
