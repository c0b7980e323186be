"""Values of any kind as values that JSON can hold, and metrics as values that a report can hold."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.errors import UsageError
from meshwright.observe._internal import Histogram, Image


def plain(value: Any) -> Any:
    """Return `value` with numbers of NumPy and JAX as Python's, arrays as lists, and keys as strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with numbers, and arrays of one number, as floats. Other kinds are not changed.

    Raises:
      UsageError: A value is not of a kind that a report can hold.
    """
    return {
        name: value if isinstance(value, Histogram | Image | str) else _scalar(name, value)
        for name, value in metrics.items()
    }


def _scalar(name: str, value: Any) -> float:
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise UsageError(
            f"the metric {name!r} must be a number; it is {type(value).__name__} of shape "
            f"{np.shape(value)}.\n  Give its mean, say, or write it with log_info or save_outputs."
        ) from None
