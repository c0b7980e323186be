"""What is saved beside the arrays: JSON, with the scores in it."""

import json
from collections.abc import Mapping
from numbers import Real
from typing import Any

from meshwright.checkpoint._format import read_manifest
from meshwright.checkpoint._object_path import Directory
from meshwright.checkpoint._retention import Scores
from meshwright.errors import UsageError


def check_json(extra: Mapping[str, Any] | None) -> None:
    """Raise a `UsageError` if JSON cannot hold `extra`."""
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise UsageError(f"cannot save `extra`, as JSON cannot hold it: {error}.") from None


def numbers(scores: Scores) -> Scores:
    """Return those that are numbers: an evaluation may also give texts and images, for reports."""
    return {name: float(x) for name, x in scores.items() if isinstance(x, Real) or hasattr(x, "dtype")}


def scores_of(path: Directory) -> Scores:
    """Return the scores that were saved with a checkpoint."""
    return read_manifest(path).extra.get("scores", {})
