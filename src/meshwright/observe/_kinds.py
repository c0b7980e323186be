"""The kinds of values in a report: numbers, histograms, texts and images.

PNG files are made here, in ten lines, as Pillow would add 21 MB to every installation.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from meshwright.base._internal import documented
from meshwright.errors import UsageError

if TYPE_CHECKING:  # what reads reports does not wait for JAX
    from jax.typing import ArrayLike

Values = Mapping[str, Any]
"""Values of a report by name: numbers of any dtype, `Histogram`s, texts (`str`) and `Image`s.

A writer leaves out the kinds that it cannot show.
"""


@documented
@dataclass(frozen=True)
class Image:
    """A picture in a report.

    Example:
      >>> image = mw.observe.Image.of(np.zeros((28, 28)))
      >>> image.pixels.shape
      (28, 28, 3)
    """

    pixels: np.ndarray
    """The colours, uint8[height, width, 3], from the top row down."""

    @classmethod
    def of(cls, pixels: "ArrayLike") -> Self:
        """Return the image with these pixels, which are fetched if they are on a device.

        Args:
          pixels: [height, width] of grey or [height, width, 3] of red, green and blue; either floats from 0
            (dark) to 1, beyond which they are clipped, or uint8.

        Raises:
          UsageError: The array has another shape or dtype.
        """
        x = np.asarray(pixels)
        x = x[..., None] if x.ndim == 2 else x
        is_float = (
            np.issubdtype(np.result_type(x.dtype, np.float32), np.floating) and x.dtype.kind not in "iub"
        )
        if x.ndim != 3 or x.shape[2] not in (1, 3) or not (is_float or x.dtype == np.uint8):
            raise UsageError(
                f"an image must be [height, width] or [height, width, 3], of floats from 0 to 1 or of uint8; "
                f"found {x.dtype}{list(x.shape)}."
            )
        if is_float:
            x = np.rint(255 * np.clip(np.nan_to_num(x.astype(np.float32)), 0, 1)).astype(np.uint8)
        return cls(np.broadcast_to(x, (*x.shape[:2], 3)))

    def png(self) -> bytes:
        """Return the image as a PNG file (https://www.w3.org/TR/png-3): a header, rows and an end."""
        height, width, _ = self.pixels.shape
        # 8 bits of RGB, not interlaced.
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        # Each row begins with a 0: no filter.
        unfiltered = np.pad(self.pixels.reshape(height, 3 * width), ((0, 0), (1, 0)))
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered.tobytes())), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def numbers(values: Values) -> dict[str, float]:
    """Return the numbers among the values of a report, as floats.

    Args:
      values: The values of a report by name. Histograms, texts and images are left out.

    Raises:
      UsageError: A value is of a kind that a report may not have.

    Example:
      >>> mw.observe.numbers({"loss": jnp.float32(0.25), "sample": "Once upon"})
      {'loss': 0.25}
    """
    from meshwright.observe._metrics import Histogram  # loads JAX

    return {
        name: as_float(name, value)
        for name, value in values.items()
        if not isinstance(value, Histogram | Image | str)
    }


def as_float(name: str, value: Any) -> float:
    """Return a scalar of any dtype, or a Python number, as a float."""
    # Most values are Python numbers: they are spared the cost of NumPy.
    if isinstance(value, float | int):
        return float(value)
    array = np.asarray(value)
    if array.ndim:
        raise UsageError(
            f"metric {name!r} has the shape {array.shape}, but a metric is a scalar or a Mean of scalars.\n"
            f"  Return Mean.of(values) for their mean, Histogram.of(values) for their distribution, or one "
            "named metric for each element."
        )
    try:
        return float(array)
    except (TypeError, ValueError):
        raise UsageError(
            f"metric {name!r} is of type {type(value).__name__}; expected a number, Histogram, text or Image."
        ) from None
