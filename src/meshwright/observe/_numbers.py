"""Numbers and times as short text."""

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float, *, thousands: str = "") -> str:
    """Return a number as text with four significant digits.

    Example:
      >>> [mw.observe._internal.number(value) for value in (0.98765, 1.5, 41312.4, 0.00001)]
      ['0.9877', '1.5', '41310', '1e-05']
    """
    if not 1e-4 <= abs(value) < 1e15:  # NaN, too
        return f"{value:.4g}"
    rounded = float(f"{value:.3e}")
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text).replace(",", thousands)


def duration(seconds: float) -> str:
    """Return a time as `h:mm:ss`; `–` if it is not finite.

    Example:
      >>> mw.observe._internal.duration(3725)
      '1:02:05'
    """
    if not math.isfinite(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def sparkline(values: Sequence[float]) -> str:
    """Return a curve of block characters, one for each value; `×` for a value that is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else "×" for value in values)
