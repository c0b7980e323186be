"""What a report may hold: numbers, histograms, texts and images.

Images are made PNG here, in ten lines: Pillow would be 21 MB in every installation, for every run.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from jax.typing import ArrayLike

from meshwright.errors import UsageError
from meshwright.metrics._histogram import Histogram

Values = Mapping[str, Any]
"""By name: numbers of any dtype, `Histogram`s, texts (`str`), `Image`s. What one cannot show it omits."""


@dataclass(frozen=True)
class Image:
    """A picture in a report."""

    pixels: np.ndarray
    """uint8[height, width, 3], the top row first."""

    @classmethod
    def of(cls, pixels: ArrayLike) -> Self:
        """Return the image of [height, width], grey, or [height, width, 3]; fetches it if on a device.

        Floats are from 0, dark, to 1, and cut off there; integers are uint8.

        Raises:
          UsageError: they are of another shape or dtype.
        """
        x = np.asarray(pixels)
        x = x[..., None] if x.ndim == 2 else x
        is_float = (
            np.issubdtype(np.result_type(x.dtype, np.float32), np.floating) and x.dtype.kind not in "iub"
        )
        if x.ndim != 3 or x.shape[2] not in (1, 3) or not (is_float or x.dtype == np.uint8):
            raise UsageError(
                f"an image is [height, width] or [height, width, 3] of floats from 0 to 1 or of uint8; "
                f"this is {x.dtype}{list(x.shape)}."
            )
        if is_float:
            x = np.rint(255 * np.clip(np.nan_to_num(x.astype(np.float32)), 0, 1)).astype(np.uint8)
        return cls(np.broadcast_to(x, (*x.shape[:2], 3)))

    def png(self) -> bytes:
        """Return the image as a PNG file (https://www.w3.org/TR/png-3): a header, rows and an end."""
        height, width, _ = self.pixels.shape
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of RGB, not interlaced
        unfiltered = np.pad(self.pixels.reshape(height, 3 * width), ((0, 0), (1, 0)))  # a 0 before each row
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes())), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def numbers(values: Values) -> dict[str, float]:
    """Return those of `values` that are numbers, as Python's floats.

    Raises:
      UsageError: one is of no kind that a report may hold.
    """
    return {
        name: as_float(name, value)
        for name, value in values.items()
        if not isinstance(value, Histogram | Image | str)
    }


def as_float(name: str, value: Any) -> float:
    """Return a scalar of any dtype, or a Python number, as a float.

    Raises:
      UsageError: it is neither.
    """
    if isinstance(value, float | int):  # without NumPy's detour: reports have many
        return float(value)
    array = np.asarray(value)
    if array.ndim:
        raise UsageError(
            f"metric {name!r} has the shape {array.shape}, but a metric is a scalar or a Mean of scalars.\n"
            f"  Return Mean.of(values) to average it, Histogram.of(values) to see how they are distributed, "
            "or give each element a name of its own."
        )
    try:
        return float(array)
    except (TypeError, ValueError):
        raise UsageError(
            f"metric {name!r} is a {type(value).__name__}; reports hold numbers, Histograms, texts, Images."
        ) from None
