"""Checksums: CRC-32 as in ZIP files, and masked CRC-32C as in TensorFlow's records and tables.

CRC-32 is also of data whose parts several threads have read: the CRCs of parts are joined here, because
Python's zlib cannot join them. zlib is used where isal has no wheel.

Source of `joined`: appending n zero bits to a message multiplies its remainder by x**n modulo the
polynomial, as in zlib's crc32_combine.
"""

import functools
import zlib
from typing import Any

import google_crc32c
import numpy as np

try:
    from isal.isal_zlib import crc32 as _crc
except ImportError:  # isal has no wheels for some machines
    _crc = zlib.crc32

# Bit 31 is the coefficient of x**0.
_POLYNOMIAL = 0xEDB88320
_UNIT, _X = 1 << 31, 1 << 30


def crc32(data: Any, crc: int = 0) -> int:
    """Return the CRC-32 of a buffer, or of earlier data followed by the buffer."""
    return _crc(data, crc)


def joined(first: int, second: int, second_nbytes: int) -> int:
    """Return the CRC-32 of two pieces of data, one after the other."""
    return _times(_x_to_the(8 * second_nbytes), first) ^ second


# Most pieces of large data have the same size.
@functools.lru_cache(maxsize=256)
def _x_to_the(exponent: int) -> int:
    power, square = _UNIT, _X
    while exponent:
        if exponent & 1:
            power = _times(power, square)
        square, exponent = _times(square, square), exponent >> 1
    return power


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials, modulo the polynomial."""
    product = 0
    while a:
        if a & _UNIT:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def masked_crc32c(data: bytes | np.ndarray) -> bytes:
    """Return the masked CRC-32C of bytes, as the four bytes that files contain."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
