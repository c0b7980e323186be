"""Numbers, sizes, times and meshes as short text, in one format each."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_BLOCKS = "▁▂▃▄▅▆▇█"


def number(value: float, *, thousands: str = "") -> str:
    """Return a number as text with four significant digits.

    Example:
      >>> [mw.base._internal.number(value) for value in (0.98765, 1.5, 41312.4, 0.00001)]
      ['0.9877', '1.5', '41310', '1e-05']
    """
    if not 1e-4 <= abs(value) < 1e15:  # NaN, too
        return f"{value:.4g}"
    rounded = float(f"{value:.3e}")
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{rounded:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if decimals else text).replace(",", thousands)


def duration(seconds: float) -> str:
    """Return a time as `h:mm:ss`; `–` if it is not finite."""
    if not math.isfinite(seconds):
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def seconds_text(value: float) -> str:
    """Return a time as short text with a unit."""
    if value >= 100:
        return f"{value:.0f} s"
    if value >= 1:
        return f"{value:.3g} s"
    if value >= 1e-3:
        return f"{1e3 * value:.3g} ms"
    return f"{1e6 * value:.3g} µs" if value >= 1e-6 or not value else "under 1 µs"


def milliseconds(seconds: float) -> str:
    """Return a time as `310 ms`, for texts in which all times have one unit."""
    return f"{number(1000 * seconds)} ms"


def human_bytes(num_bytes: float) -> str:
    """Return a size in binary units: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            whole = unit == "B" or num_bytes >= 100
            return f"{num_bytes:.0f} {unit}" if whole else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.3g} TiB"


def mesh_text(sizes: Mapping[str, int]) -> str:
    """Return the sizes of a mesh's axes as `mw.make_mesh` reads them: `data=2,fsdp=4`."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def mesh_words(sizes: Mapping[str, int]) -> str:
    """Return the sizes of a mesh's axes for people: `data 2 × fsdp 4`."""
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items())


def sparkline(values: Sequence[float]) -> str:
    """Return a curve of block characters, one for each value; `×` for a value that is not finite."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] if math.isfinite(value) else "×" for value in values)


FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The format, for `logging.Formatter` and `strftime`."""


def local_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, in this machine's time zone, for screens and logs."""
    return datetime.fromtimestamp(seconds).strftime(FORMAT)


def utc_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as `2026-11-22T18:20:01Z`, for pages that are read elsewhere."""
    return datetime.fromtimestamp(seconds, UTC).strftime(f"{FORMAT}Z")
