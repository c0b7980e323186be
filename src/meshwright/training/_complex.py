"""Check that an optimizer does not drop the imaginary parts of complex parameters."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from meshwright.errors import UsageError


@contextmanager
def kept_complex() -> Iterator[None]:
    """Raise a `UsageError` if an optimizer that is traced in the block casts complex numbers to real ones.

    JAX only gives a warning, which Python often does not show, and drops the imaginary parts.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Casting from complex to real", DeprecationWarning)
            yield
    except DeprecationWarning:
        raise UsageError(
            "the optimizer casts complex numbers to real ones, and would drop the imaginary parts.\n  Use "
            "another optimizer, or leave out its dtype (for example `mu_dtype`). `microbatches` accumulates "
            "complex gradients correctly."
        ) from None
