"""Values of any kind as those that JSON has."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.errors import UsageError
from meshwright.metrics import Histogram, Image


def plain(value: Any) -> Any:
    """Return `value` with NumPy's and JAX's numbers as Python's, arrays as lists, and keys as texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return np.asarray(value).tolist() if hasattr(value, "dtype") else value


def reported(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with numbers, and arrays of one number, as Python's floats; other kinds as they are.

    Raises:
      UsageError: one is nothing that a report may hold.
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
            f"the metric {name!r} is no number but {type(value).__name__} of shape {np.shape(value)}.\n"
            "  Give its mean or the like, or write it with log_info or save_outputs."
        ) from None
