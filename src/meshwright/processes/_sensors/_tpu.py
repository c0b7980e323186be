"""What libtpu's own SDK tells of TPUs: https://cloud.google.com/tpu/docs/tpu-monitoring-library.

It comes with libtpu, and so with `meshwright[tpu]`. A metric is asked for by name, and answers with texts:
one for each chip, or one for each link with the score of its health, from 0 (well) to 10 (unusable).
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_NAMES = {
    "duty_cycle_pct": ("busy/device", 0.01, min),
    "tensorcore_util": ("busy/tensorcore", 0.01, min),
    "ici_link_health": ("errors/ici_link", 1.0, max),
}


def tpu_chips() -> Callable[[], dict[str, float]]:
    """Return a function that returns the figures of the TPUs of this host, of each the worst."""
    try:
        sdk = importlib.import_module("libtpu.sdk").tpumonitoring
    except (ImportError, AttributeError):
        return dict
    return lambda: _figures(sdk)


def _figures(sdk: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    for asked, (name, unit, worst) in _NAMES.items():
        with suppress(Exception):  # a version of libtpu that does not have this metric, or has no answer yet
            values = [float(str(each).rpartition(":")[2]) for each in sdk.get_metric(asked).data()]
            if values:
                found[name] = unit * worst(values)
    return found
