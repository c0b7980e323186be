"""Numbers as people like to read them."""

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float, *, thousands: str = "") -> str:
    """Return `value` with four significant digits: `0.9876`, `1.5`, `41310`, `1e-05`, `nan`.

    `thousands` stands between groups of three digits.
    """
    if not 1e-4 <= abs(value) < 1e15:  # nan, too
        return f"{value:.4g}"
    rounded = float(f"{value:.3e}")
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text).replace(",", thousands)


def duration(seconds: float) -> str:
    """Return `seconds` as `h:mm:ss`."""
    if not math.isfinite(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def sparkline(values: Sequence[float]) -> str:
    """Return one block a value, the lowest finite one at the bottom; `×` where a value is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else "×" for value in values)
