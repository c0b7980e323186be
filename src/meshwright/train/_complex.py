"""Complex parameters: their imaginary parts are moved, and never dropped on the way."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.errors import UsageError


@contextmanager
def kept_complex() -> Iterator[None]:
    """Raise a `UsageError` where an optimizer that is traced in the block casts complex numbers to real ones.

    JAX warns of it, in places where Python shows no warnings, and drops the imaginary parts.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Casting from complex to real", DeprecationWarning)
            yield
    except DeprecationWarning:
        raise UsageError(
            "the optimizer casts complex numbers to real ones, and would drop the imaginary parts.\n  Take "
            "one that does not, or leave out its dtype (`mu_dtype`, say); `microbatches` accumulates them."
        ) from None
